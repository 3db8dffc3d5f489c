"""The methods in recipes/methods: each fires, bites and trains, and fails its proofs when its control takes it out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.api.shipped import shipped_methods
from agentrl.config.files import method_files, method_name
from agentrl.config.loader import load_recipe
from agentrl.config.profiles import CONTROL
from agentrl.config.recipe import Recipe
from agentrl.rollouts.builder import build
from agentrl.store.reader import RunReader
from tests.estimators.golden_scalars import plan
from tests.estimators.tables import Member, Step, run, table_of
from tests.methods.proofs import Method, learned, played


def metric(name: str) -> Any:
    """The values of a metric of the updates."""
    return lambda stored: [line[name] for line in stored.metrics() if name in line]


def credited(recipe: Recipe) -> list[float]:
    """The credit of every turn. One episode goes a, b and succeeds; one goes a, b and fails; one goes c and fails."""
    good, bad = [Step("a", 0, 1), Step("b", 0, 1)], [Step("c", 0, 1)]
    table = table_of([Member("g", 1.0, good), Member("g", 0.0, good), Member("g", 0.0, bad)])
    table = table.with_columns(action=["x", "y", "x", "y", "z"])
    settings = {"std": "none", **recipe.credit.settings}
    return [round(value, 3) for value in np.asarray(run(str(recipe.credit.use), table, **settings).turn).tolist()]


def horizons(recipe: Recipe) -> list[int]:
    """The limits of turns at three iterations; without a part that sets them, the recipe's own."""
    parts = build(recipe).make_curriculum()
    return [plan(parts[0], at).max_turns if parts else recipe.agent.max_turns for at in (0, 1, 9)]


def longest(stored: RunReader) -> Sequence[int]:
    """The turns of the longest episode of each iteration."""
    found: dict[int, int] = {}
    for episode in played(stored):
        found[episode.iteration] = max(found.get(episode.iteration, 0), len(episode.turns))
    return list(found.values())


def verdicts(stored: RunReader) -> Sequence[bool]:
    """By episode that failed or succeeded: True if every turn of it has the credit -1, as no other estimator gives."""
    credits = [(episode, stored.credit(episode.id)) for episode in played(stored)]
    return [set(found.turn_advantages) == {-1.0} for _, found in credits if found is not None]


METHODS = [
    # The turn that both a-b episodes share has the mean of 2/3 and -1/3; c is of one episode.
    Method("salt", metric("merged_edges"), credited, [0.167, 0.167, 0.167, 0.167, -0.333]),
    Method("negative-reinforcement", verdicts, credited, [0.0, 0.0, -1.0, -1.0, -1.0]),
    Method(
        "scaling-inter",
        longest,
        horizons,
        [2, 4, 4],
        small=("curriculum=[{scaling_inter: {max_turns: [2, 4], every: 1}}]",),
    ),
]


def test_every_method_is_proven() -> None:
    assert {method.name for method in METHODS} == set(map(method_name, method_files()))
    for each in shipped_methods():
        assert each.base == "babyai/learn.yaml"
        assert each.acts
        assert "arXiv" in each.paper


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_recipe_of_a_method_is_short_and_its_control_leaves_the_base(method: Method) -> None:
    file = next(path for path in method_files() if method_name(path) == method.name)
    assert len(file.read_text().splitlines()) <= 40
    control, base = load_recipe(method.name, (), CONTROL), load_recipe("babyai/learn.yaml", ["credit=grpo"])
    if method.name == "scaling-inter":
        base = load_recipe("babyai/learn.yaml")
    for section in ("agent", "rewards", "curriculum", "train", "credit"):
        assert getattr(control, section) == getattr(base, section), section


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_method_acts_and_trains_and_its_control_does_not_pass_for_it(method: Method, tmp_path: Path) -> None:
    treated = method.play(tmp_path / "treated")
    method.proves(treated)
    learned(treated)
    assert not method.acts_without(method.play(tmp_path / "control", CONTROL))
