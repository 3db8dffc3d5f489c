"""What recipes that train a policy on the spot begin with: the oracle solves every task, and the script of the warm
start solves some, so that there is something to find out. The figures are those of the READMEs (`learn.yaml`)."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from agentrl.api.rollout import rollout
from tests.environments.packages import needs

RECIPES = Path(__file__).parents[2] / "recipes"
LEARN = {
    "babyai": ("minigrid", "stroller"),
    "math-python": ("math_verify", "guesser"),
    "search-qa": ("bm25s", "guesser"),
    "sql-chinook": ("chinook", "guesser"),
    "tau2": ("tau2", "clerk"),
    "textworld-express": ("textworld_express", "stroller"),
}


def test_every_recipe_that_learns_is_here() -> None:
    assert {path.parent.name for path in RECIPES.glob("*/learn.yaml")} == {*LEARN}


def played(recipe: Path, n: int, script: str, out: Path) -> float:
    """The mean reward."""
    few = {} if recipe.parent.name == "tau2" else {"tasks.args.n": 64}
    run = rollout(recipe, n, script=script, overrides=few, out=out, reporters=())
    return mean(episode.reward or 0.0 for episode in run.dir.episodes())


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARN)
def test_the_warm_start_leaves_something_to_find_out(tmp_path: Path, name: str) -> None:
    package, script = LEARN[name]
    needs(package)
    recipe = RECIPES / name / "learn.yaml"
    solved = {each: played(recipe, n, each, tmp_path / each) for each, n in (("oracle", 8), (script, 32))}
    assert solved["oracle"] == 1
    assert 0 < solved[script] < 0.7
