"""Methods that choose tasks, episodes or limits."""

from __future__ import annotations

from agentrl.config.recipe import Recipe
from agentrl.rollouts.builder import build
from tests.estimators.golden_scalars import plan
from tests.methods.proofs import Method, Run


def horizons(recipe: Recipe) -> list[int]:
    """The limits of turns at three iterations; without a part that sets them, the recipe's own."""
    parts = build(recipe).make_curriculum()
    return [plan(parts[0], at).max_turns if parts else recipe.agent.max_turns for at in (0, 1, 9)]


def longest(run: Run) -> list[int]:
    """The turns of the longest episode of each iteration."""
    found: dict[int, int] = {}
    for episode in run.played:
        found[episode.iteration] = max(found.get(episode.iteration, 0), len(episode.turns))
    return list(found.values())


METHODS = [
    Method(
        "scaling-inter",
        longest,
        horizons,
        [2, 4, 4],
        small=("curriculum=[{scaling_inter: {max_turns: [2, 4], every: 1}}]",),
    ),
]
