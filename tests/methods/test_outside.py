"""Methods that a package brings, from a wheel of its own: the examples of `examples/`, with all four proofs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import agentrl
from agentrl.api.recipe_check import check
from agentrl.config.profiles import CONTROL
from agentrl.config.recipe import Recipe
from agentrl.store.run_dir import RunDir
from tests.estimators.tables import Member, Step, table_of
from tests.methods import credit
from tests.methods.proofs import Method, Run, acts
from tests.methods.stub_api import Asking
from tests.rewards.make import make_episode
from tests.rewards.make import turn as make_turn

EXAMPLES = Path(__file__).parents[2] / "examples"


@dataclass(frozen=True)
class Packaged(Method):
    """A method of an installed package.

    Attributes:
        base: the recipe that it is added to.
    """

    base: str = "babyai/learn.yaml"  # type: ignore[assignment] # of shipped methods it is looked up


@dataclass(frozen=True)
class Judged(Asking):
    base: str = "math-python/learn.yaml"  # type: ignore[assignment]


# Group a: the right one has 3 tokens, the wrong ones 1 and 3: it is longer than they are on average. Group b: the right
# one has 1. Scores 1, 0, 0: mean 1/3, deviation 1/sqrt 3.
TOKENS = [3, 1, 3, 1, 1, 3]
LENGTHS = table_of(
    [Member(g, s, [Step(None, 0.0, n)]) for g, s, n in zip("aaabbb", [1, 0, 0] * 2, TOKENS, strict=True)]
)
GRPO = [2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5]


FEWER = ("warm_start.episodes=128", "warm_start.steps=100", "train.groups=8")
"""Overrides of a warm start of seconds."""


def goals(run: Run) -> list[Any]:
    """By episode: the goal that it was given."""
    return [episode.info.get("goal") for episode in run.played]


def demonstrated(recipe: Recipe) -> list[Any]:
    """The goals of 16 demonstrations, and the share of successes by goal, low and high: 1, or less."""
    script = recipe.warm_start.script if recipe.warm_start else None
    folder = Path(mkdtemp(prefix="agentrl-goals-")) / "run"
    agentrl.rollout(recipe, 16, script=script, out=folder, reporters=())
    with RunDir.read(folder) as run:
        played = list(run.episodes())
    found = sorted({str(episode.info.get("goal")) for episode in played})
    won = [[each.reward for each in played if str(each.info.get("goal")) == goal] for goal in found]
    return [*found, *(sum(each) / len(each) == 1 for each in won)]


# Who is shorter wins. All meet the first (2 letters): shares 1, 0, 0, and for itself 2/3. So 1 letter meets 3, and 2
# meet 4; then 1 meets 2. Both losers of the first round won nothing: the order of the bracket decides, 3 before 4.
REPLIES = credit.paid(*(make_episode(credit.SUM, make_turn(text="x" * n), answer="4") for n in (2, 1, 4, 3)))

METHODS: list[Method] = [
    Packaged(
        "adora",
        lambda run: credit.part(run, "adora", "attenuation"),
        credit.by_trajectory(LENGTHS),
        credit.rounded([*GRPO, *(0.1 * each for each in GRPO)]),
    ),
    Judged(
        "arenarl",
        credit.component("arena"),
        REPLIES,
        credit.rounded([2 / 3, 1, 0, 1 / 3]),
        sized=credit.EIGHT,
        warmed=credit.BY_HEART,
        answer=credit.shorter,
        asks=("rewards.arena.judge",),
    ),
    Packaged(
        "rc-grpo", goals, demonstrated, ["<|high_reward|>", "<|low_reward|>", True, False], sized=FEWER, warmed=None
    ),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The packages, from their wheels."""
    folder = tmp_path_factory.mktemp("outside")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    packages = sorted(map(str, EXAMPLES.iterdir()))
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder / "dist", *packages], check=True)
    wheels = sorted((folder / "dist").glob("*.whl"))
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", *wheels], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "site")
        yield


def test_each_is_proven() -> None:
    assert sorted(method.name for method in METHODS) == sorted(path.name for path in EXAMPLES.iterdir())


@pytest.mark.family("methods")
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_package_brings_a_method(method: Method, tmp_path: Path) -> None:
    files = [path for path in (EXAMPLES / method.name / "src").rglob("*.*") if path.suffix in (".py", ".yaml")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 60
    for profile in (None, CONTROL):
        assert check(method.name, [], profile).warnings == []
    acts(method, tmp_path)
