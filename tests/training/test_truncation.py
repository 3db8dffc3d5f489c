"""`train.truncated` and `train.timed_out`: what reaches the trainer of episodes that a limit ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.api.train import train as train_recipe
from agentrl.estimators.registry import CreditAssigner
from agentrl.store.run_dir import RunDir
from agentrl.training.trainer import Trainer
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample

pytestmark = pytest.mark.slow

CODE = """
from agentrl import Task, Tool, ToolResult, tool

def tasks():
    yield Task.of("t", "Go.")

class Door(Tool):
    @tool
    async def go(self) -> str:
        "Go on."
        return "on"

def even(task, episode):
    return float(len(episode.turns[0].text) % 2)
"""

AHEAD = ["train.max_staleness=1", "train.importance={high: 2}"]

# The untrained policy says nothing that can be parsed: what it says is its answer, and a cut reply goes on.
RECIPE = """\
name: cut
tasks: ./task.py:tasks
tools: [./task.py:Door]
rewards: {even: ./task.py:even}
agent: {format: tags, max_turns: 1, describe_tools: false}
model: {scratch: {hidden: 16, layers: 1, heads: 2, vocab_size: 300, max_context: 256}}
sampling: {max_tokens: 60}
train: {iterations: 1, groups: 2, group_size: 16, lr: 1.0e-4}
"""


def trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *sets: str, stop: str = "turns"
) -> tuple[set[str], set[str], dict[str, Episode], dict[str, Any]]:
    """The ids of the episodes whose tokens the trainer was given, and of those in a baseline; all episodes; metrics.

    Args:
        stop: what the truncated episodes are made to say that ended them.
    """
    (folder / "task.py").write_text(CODE)
    (folder / "recipe.yaml").write_text(RECIPE)
    rows: list[TrainingSample] = []
    counted: set[str] = set()
    update, assign, add = Trainer.update, CreditAssigner.assign, RunDir.add

    def watched(self: Trainer, given: list[TrainingSample], **options: Any) -> dict[str, float]:
        rows.extend(given)
        return update(self, given, **options)

    def counting(self: CreditAssigner, given: list[Episode], *more: Any) -> Any:
        counted.update(episode.id for episode in given)
        return assign(self, given, *more)

    def stopped(self: RunDir, episode: Episode) -> None:
        add(self, msgspec.structs.replace(episode, stop=stop) if episode.status == "truncated" else episode)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "update", watched)
        patched.setattr(CreditAssigner, "assign", counting)
        patched.setattr(RunDir, "add", stopped)
        train_recipe(folder, overrides=list(sets), out=folder / "run")
    with RunDir.read(folder / "run") as run:
        played = {episode.id: episode for episode in run.episodes(split="train")}
        (line,) = run.metrics()
    return {row.episode_id for row in rows if row.loss_mask.any()}, counted, played, line


@pytest.mark.parametrize(
    ("rule", "key", "stop", "loop"),
    [
        ("keep", "truncated", "turns", []), ("mask", "truncated", "turns", AHEAD), ("drop", "truncated", "turns", []),
        ("mask", "truncated", "tokens", []), ("drop", "truncated", "tokens", AHEAD),
        ("keep", "timed_out", "wall", AHEAD), ("mask", "timed_out", "wall", []), ("drop", "timed_out", "wall", AHEAD),
    ],
)  # fmt: skip
def test_what_trains_and_what_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, key: str, stop: str, loop: list[str]
) -> None:
    """Each rule with each limit and with each loop."""
    rows, counted, played, line = trained(tmp_path, monkeypatch, f"train.{key}={rule}", *loop, stop=stop)
    cut = {id for id, episode in played.items() if episode.status == "truncated"}
    assert cut
    assert cut != set(played), "some of either kind, or this test says nothing"
    assert rows == (set(played) if rule == "keep" else set(played) - cut)
    assert counted == (set(played) - cut if rule == "drop" else set(played))
    assert line.get("masked", 0) == (len(cut) if rule == "mask" else 0)
    assert line.get("dropped", 0) == (len(cut) if rule == "drop" else 0)


@pytest.mark.parametrize(("key", "stop"), [("truncated", "wall"), ("timed_out", "turns")])
def test_each_key_is_for_its_own_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, stop: str) -> None:
    rows, counted, played, _ = trained(tmp_path, monkeypatch, f"train.{key}=drop", stop=stop)
    assert rows == counted == set(played)


def test_who_broke_its_sandbox_cannot_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, counted, played, _ = trained(tmp_path, monkeypatch, "train.truncated=drop", stop="sandbox_broken")
    assert rows == counted == set(played)


@pytest.mark.parametrize("rule", ["mask", "drop"])
def test_an_iteration_of_truncated_episodes_alone_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    rows, _, played, line = trained(tmp_path, monkeypatch, f"train.truncated={rule}", "sampling.max_tokens=1")
    assert {episode.status for episode in played.values()} == {"truncated"}
    assert not rows
    assert line["trained_rows"] == 0
    assert "no episode is left to train on" in capsys.readouterr().out
