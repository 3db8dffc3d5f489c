"""Methods in which several agents speak in an episode, each with turns and outcomes of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.config.recipe import Recipe
from agentrl.training.stages.stage import stages_of
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from tests.estimators.tables import Member, Step, table_of
from tests.methods.credit import by_trajectory, rounded, told
from tests.methods.curricula import by_stage, stages_learned
from tests.methods.played import rewards_of
from tests.methods.proofs import Method, Run
from tests.rewards.make import make_episode, turn

# --- games --------------------------------------------------------------------------------------------------------

SMALL_PLAYER = (
    "model={scratch: {hidden: 32, layers: 1, heads: 2, vocab_size: 400, max_context: 1536}, device: cpu}",
    "train.trainable=null", "agent.max_turns=16", "sampling.max_tokens=8",
)  # fmt: skip
"""Overrides of a base for a language model: a model from scratch."""
MOVES = (
    *SMALL_PLAYER, "warm_start={script: random, episodes: 48, steps: 60, batch: 8, lr: 4.0e-3}", "train.lr=1e-3",
    "train.kl={coef: 0.01}", "train.iterations=1", "train.groups=1", "train.group_size=2", "train.minibatch=2", "eval=null",
)  # fmt: skip

# Four games of two moves; seat 0 wins three. Rewards less the mean of the role: +-1/2 three times, +-3/2 once; returns
# are the same. Less the mean of a role's distinct values 1/2, -3/2 and 0, which is -1/3: 5/6 and -7/6, and for seat 1
# the opposite. Their sum is 0, and their deviation the root of (6 * 25/36 + 2 * 49/36) / 7. Whitening the rewards
# before that changes their scale alone.
GAMES = table_of(
    [Member("g", won, [Step(None, 0.0, 1), Step(None, -2.0 * won, 1)]) for won in (1.0, 1.0, 1.0, -1.0)]
).with_columns(role=["player 0", "player 1"] * 4, observation_tokens=[0] * 8)
PLAYED = ((6 * 25 + 2 * 49) / 36 / 7) ** 0.5

# --- critics ------------------------------------------------------------------------------------------------------

ACTOR = ("policies.actor={script: actor}", "scripts.actor=../critique-rl/task.py:actor")
SUM = Task.of("t", "What is 2 + 2?", answer="4")


def critique(text: str, first: str, *refined: str) -> Episode:
    """An episode in which a critic said this of the first answer."""
    return make_episode(SUM, turn(text=text), answer=refined[-1], info={"first": first, "refined": [*refined]})


def scores(recipe: Recipe, *episodes: Episode) -> list[float]:
    """What the recipe pays episodes."""

    async def totals() -> list[Any]:
        return [(await rewards_of(recipe).score(each.task, each)).total for each in episodes]

    return rounded(asyncio.run(totals()))


FOUND = critique("<judge>wrong</judge>It is 4.", "5", "4", "5")
MISSED = critique("<judge>right</judge>It is 4.", "5", "5", "5")
DOUBTED = critique("<judge>wrong</judge>It is 4.", "4", "4", "4")
LUCKY = critique("<judge>right</judge>It is 4.", "5", "4", "4")


def critiques(recipe: Recipe) -> list[float]:
    return scores(recipe, FOUND, MISSED, DOUBTED, LUCKY)


def critic_stages(recipe: Recipe) -> list[Any]:
    """By stage of reinforcement learning: its name, the pay of critiques, and the weight of the distance to its start."""
    stages = [each for each in stages_of(recipe) if each.kind == "rl"]
    return [(each.name, critiques(each.recipe), bool(each.recipe.train.kl)) for each in stages]


def component(name: str) -> Callable[[Run], Sequence[Any]]:
    """By episode: a component of its reward."""
    return lambda run: [each.components[name] for each in run.played if name in each.components]


METHODS = [
    Method(
        "mars",
        lambda run: [credit.turn_advantages for credit in told(run, "mars")],
        by_trajectory(GAMES),
        rounded([5 / 6 / PLAYED, -5 / 6 / PLAYED] * 3 + [-7 / 6 / PLAYED, 7 / 6 / PLAYED]),
        sized=SMALL_PLAYER[1:],
        warmed=MOVES,
    ),
    # First 1 for a verdict that is true; then the share of right answers and 0.2 of it.
    Method(
        "critique-rl",
        lambda run: by_stage(run, lambda each: ", ".join(each.components)),
        critic_stages,
        [("judge", [1.0, 0.0, 0.0, 0.0], False), ("help", [0.7, 0.0, 1.0, 1.0], True)],
        sized=(
            *ACTOR,
            "stages.0.sft.steps=200",
            "stages.0.sft.episodes=256",
            "tasks.args.n=16",
        ),
        warmed=None,
        learns=stages_learned,
    ),
    # A true verdict 1; a fault that was found, the share of right answers after it. A right answer that stays right
    # pays nothing, nor one that comes out right although its fault was missed.
    Method(
        "refcritic",
        component("refined"),
        critiques,
        [1.5, 0.0, 0.0, 0.0],
        sized=(*ACTOR, "warm_start.steps=200", "warm_start.episodes=256", "tasks.args.n=16"),
        warmed=None,
        learns=stages_learned,
    ),
]
