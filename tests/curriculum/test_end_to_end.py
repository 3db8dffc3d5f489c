"""Every loss and every part of a curriculum, by name, from a recipe to the second iteration; and after a kill."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.train import train as train_recipe
from agentrl.curriculum.registry import PARTS
from agentrl.store.run_dir import RunDir
from agentrl.training import checkpoint
from agentrl.training.losses.registry import LOSSES
from agentrl.types.errors import AgentRLError, TrainError
from tests.counting import EXACT

pytestmark = pytest.mark.slow

METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"
SMALL = {
    "laser_d": "{thresholds: [4, 8]}",
    "dads": "{every: 1}",
    "vas": "{every: 1}",
    "limr": "{passes: 2, threshold: -100}",
    "scaling_inter": "{max_turns: [2, 4], every: 1}",
    "stepwise": "{key: least, values: [0.5, 0.9], until: [0.5]}",
    "expert_budget": "{key: to}",
    "levels": "{key: to, at: 0.1, groups: 1}",
    "rorecomp": "{every: 2}",
    "relift": "{script: oracle, buffer: 1, lr: 1.0e-3}",
}
NOT_MEASURED = (
    "rollout_s", "train_s", "episodes_in_flight", "rollouts_wait_s", "mismatch_mean", "mismatch_max", "at",
    "loop_stalls", "loop_stall_s",
)  # fmt: skip
NOT_MEASURED += ("canary_gap", "canary_moved", "canary_arrived", "canary_s")
OLDER = ("dart_successes", "rorecomp")
"""They train on episodes of older policies, which the recipe must correct for."""
MATRIX = list(itertools.zip_longest(LOSSES.built_in, PARTS.built_in, fillvalue="ppo_clip"))


def train(counting: list[str], out: Path, *more: str) -> list[dict[str, Any]]:
    train_recipe(counting[0], overrides=[*counting[1:], *more], out=out)
    return metrics(out)


def undocumented(names: set[str]) -> set[str]:
    """Metrics that docs/metrics.md does not name; those of a curriculum's part by what follows the part's name."""
    page = METRICS.read_text()
    known = set(re.findall(r"`(\w+)`", page))
    named = re.findall(r"`(\w+)/[A-Z]+`", page)
    named += [f"{part}{name.removeprefix('PART')}" for name in named for part in PARTS.built_in if "PART" in name]
    known |= {name for name in names if name.split("/")[0] in named}
    suffixes = {name.removeprefix("PART") for name in known if name.startswith("PART_")}
    known |= {f"{part}{suffix}" for part in PARTS.built_in for suffix in suffixes}
    return names - known


def metrics(out: Path) -> list[dict[str, Any]]:
    with RunDir.read(out) as run:
        names = {name for line in run.metrics() for name in line} - {"iteration", "split", "at"}
        assert not undocumented(names)
        return [{k: v for k, v in line.items() if k not in NOT_MEASURED} for line in run.metrics()]


@pytest.mark.family("parts")
@pytest.mark.parametrize(("loss", "part"), MATRIX)
def test_by_name(counting: list[str], tmp_path: Path, loss: str, part: str) -> None:
    corrected = ["train.importance={high: 1}"] if part in OLDER else []
    lines = train(
        counting, tmp_path / "run", f"train.loss={loss}", f"curriculum=[{{{part}: {SMALL.get(part, '{}')}}}]",
        "train.iterations=2", "train.groups=3", "train.group_size=4", *corrected,
    )  # fmt: skip
    assert [line["iteration"] for line in lines] == [1, 2]
    assert all(line["failed"] == 0 for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ["train.kl={coef: 0.1}", "train.importance={level: token}"],
        ["train.kl={coef: 0.1, estimator: k1, place: reward}", "train.importance={level: geometric, mode: mask}"],
        ["train.kl={coef: 0.1, estimator: k3, place: reward}", "credit={use: gigpo}"],
        ["train.kl={coef: 0.1, estimator: k1, place: reward}", "credit={use: reinforce_pp}"],
    ],
)
def test_kl_and_importance(counting: list[str], tmp_path: Path, more: list[str]) -> None:
    lines = train(counting, tmp_path / "run", *more, "train.iterations=2", "train.group_size=4", "train.minibatch=2")
    assert lines[0]["kl_ref"] != 0 or lines[1]["kl_ref"] != 0
    if "train.importance" in more[1]:
        assert lines[0]["importance_mean"] == pytest.approx(1, abs=1e-4)


ALL = (
    "curriculum=[dump, {dapo: {rounds: 2}}, {scaling_inter: {max_turns: [3, 4], every: 2}}, dart_rollouts, "
    "dart_successes, dart_turns, {rorecomp: {every: 2}}, {relift: {script: oracle, buffer: 1, lr: 1.0e-3}}, seele]"
)


SETS = [ALL, "train.iterations=4", "train.group_size=4", "train.checkpoint_every=2", "train.kl={coef: 0.01}",
        "train.old_logprobs=engine", *EXACT]  # fmt: skip
"""The engine's own log-probabilities choose turns here (`dart_turns`): their rounding must not depend on timing."""


@pytest.fixture(scope="module")
def whole(counting: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a training that nothing kills."""
    out = tmp_path_factory.mktemp("whole")
    train(counting, out / "run", *SETS)
    return out / "run"


@pytest.mark.slow
@pytest.mark.parametrize("saves", [1, 2])
def test_a_killed_curriculum_continues_to_the_same_metrics(
    counting: list[str], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    """Dies after the update and before the checkpoint; the iterations since the last one are gone through again."""
    expected = metrics(whole)
    complete, calls = checkpoint.complete, []

    def dying(*arguments: Any, **options: Any) -> None:
        calls.append(arguments)
        if len(calls) == saves + 1:
            raise KeyboardInterrupt
        complete(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "complete", dying)
        with pytest.raises(KeyboardInterrupt):
            train(counting, tmp_path / "killed", *SETS)
    found = train(counting, tmp_path / "killed", *SETS)
    assert found == expected
    with RunDir.read(whole) as undisturbed, RunDir.read(tmp_path / "killed") as killed:
        assert undisturbed.ids() == killed.ids()


@pytest.mark.parametrize("loop", [[], ["train.max_staleness=1", "train.importance={high: 2}"]])
def test_an_iteration_without_a_score_stops_the_training(counting: list[str], tmp_path: Path, loop: list[str]) -> None:
    unscored = "rewards={exact: {use: ./task.py:nothing, required: true}}"
    with pytest.raises(TrainError, match="iteration 0: none of 4 episodes could be scored"):
        train(counting, tmp_path / "run", unscored, *loop)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("curriculum=[dumb]", "did you mean 'dump'"),
        ("curriculum=[{dump: {windw: 3}}]", "did you mean 'window'"),
        ("curriculum=[{dapo: {rounds: 0}}]", "curriculum.0.rounds"),
        ("curriculum=[dump, vade]", "two samplers: dump and vade"),
        ("curriculum=[{relift: {script: orakle}}]", "scripts has"),
        ("curriculum=[./task.py:Counter]", "not a Sampler, Schedule or Filter"),
        ("curriculum=[./task.py:Half]", "lacks the method draw"),
        ("curriculum=[{relift: {}}]", "relift needs the setting 'script'"),
        ("curriculum=[{dump: {key: domain}}]", "no data 'domain'"),
        ("rewards={exact_match: {}}", "reads data 'answer'"),
        ("train.loss=grpo", "no loss 'grpo'"),
        ("train.loss={use: gspo, tau_pos: 1}", "sapo has it"),
        ("curriculum=[dart_successes]", "dart_successes trains on episodes of older policies"),
        ("curriculum=[rorecomp]", "rorecomp trains on episodes of older policies"),
    ],
)
def test_what_is_wrong_is_found_before_the_first_episode(counting: list[str], override: str, expected: str) -> None:
    from agentrl.api.recipe_check import check

    with pytest.raises(AgentRLError, match=expected):
        check(counting[0], [override])
