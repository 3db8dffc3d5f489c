"""Trainings of one seed agree in every metric, however long tools take. A larger proof, with sandboxes:
`python -m benchmarks.determinism --trainings 10`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.trainings import differences
from tests.command import agentrl, sets
from tests.counting import metrics

TRAINING = """\
agent: {format: tags, max_turns: 6, describe_tools: false}
model: {scratch: {hidden: 32, layers: 1, heads: 2, vocab_size: 300, max_context: 256}, device: cpu}
engine: {batch_invariant: true}
sampling: {max_tokens: 8}
credit: {use: gigpo}
warm_start: {script: hasty, episodes: 12, steps: 10, batch: 8, lr: 3.0e-3}
train: {iterations: 2, groups: 4, group_size: 4, minibatch: 6, lr: 1.0e-3, entropy_bonus: 0.01}
eval: {episodes: 6}
"""


@pytest.fixture
def delayed(counting: Path) -> Path:
    """The recipe with a tool that takes up to 30 ms, never alike: batches differ from run to run."""
    task, recipe = counting / "task.py", counting / "recipe.yaml"
    plain = "await asyncio.sleep(self.delay)"
    assert plain in task.read_text()
    task.write_text(
        "import os\n" + task.read_text().replace(plain, "await asyncio.sleep(os.urandom(1)[0] * 0.03 / 255)")
    )
    recipe.write_text(recipe.read_text() + TRAINING)
    return counting


def trained(folder: Path, count: int, *overrides: str) -> list[list[dict[str, Any]]]:
    """The metrics of so many trainings."""
    for k in range(count):
        agentrl("train", folder.name, "--out", f"run{k}", *sets(*overrides), cwd=folder.parent)
    return [metrics(folder.parent / f"run{k}", but_for=("canary_s",)) for k in range(count)]


@pytest.mark.slow
def test_trainings_of_one_seed_agree_in_every_metric(delayed: Path) -> None:
    runs = trained(delayed, 2)
    assert differences(runs) == []
    lines = [line for line in runs[0] if line["split"] == "train"]
    assert len(lines) == 2
    assert {"loss", "entropy", "mismatch_mean", "mismatch_max"} <= lines[0].keys()
    assert max(line["entropy"] for line in lines) > 3  # else little could go wrong


@pytest.mark.slow
def test_without_equal_bits_tokens_are_equal_all_the_same(delayed: Path) -> None:
    runs = trained(delayed, 2, "engine.batch_invariant=false")
    assert {line.split(":")[0] for line in differences(runs)} <= {"mismatch_mean", "mismatch_max"}


def test_what_differs_is_named() -> None:
    first = [{"split": "train", "iteration": 1, "loss": 0.5, "entropy": 2.0}]
    assert differences([first, [{**first[0]}]]) == []
    assert differences([first, first, [{**first[0], "loss": 0.25}]]) == ["loss: 0.5 and 0.25 (train 1, training 3)"]
    assert differences([first, []]) == ["training 2 has 0 lines of metrics, the first 1"]
