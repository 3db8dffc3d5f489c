"""The canary: weights that did not reach the engine are told by name, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.api.train import train as train_recipe
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.store.run_dir import RunDir
from agentrl.training.canary import FLOAT32, HALF, ROWS, TOKENS, Canary, Precision, WeightsLost
from tests.counting import CODE, RECIPE, VARIED

TRAINING = """\
agent: {format: tags, max_turns: 4}
model: {scratch: {hidden: 32, layers: 1, heads: 2, vocab_size: 300, max_context: 256}}
sampling: {max_tokens: 8}
warm_start: {script: hasty, episodes: 8, steps: 20, batch: 8, lr: 3.0e-3}
train: {iterations: 3, groups: 2, group_size: 4, lr: 1.0e-3, entropy_bonus: 0.01}
credit: {use: gigpo}
"""
IN_TURNS_AND_ASIDE = pytest.mark.parametrize(
    "more", [[], ["train.max_staleness=1", "train.importance={high: 2}"]], ids=["in turns", "async"]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "task.py").write_text(CODE + VARIED)
    (tmp_path / "recipe.yaml").write_text(RECIPE + TRAINING)
    return tmp_path


def train(folder: Path, *more: str) -> list[dict[str, Any]]:
    train_recipe(folder, overrides=["rewards.varied=./task.py:varied", *more], out=folder / "run")
    with RunDir.read(folder / "run") as run:
        return [line for line in run.metrics() if line["split"] == "train"]


def drop(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """The engine says that it took that version, and keeps the weights that it had."""
    update = TorchEngine.update

    async def dropping(self: TorchEngine, weights: Any, number: int, **how: Any) -> None:
        state = {k: v.clone() for k, v in self._batch.model.state_dict().items()} if number == version else weights
        await update(self, state, number, **how)

    monkeypatch.setattr(TorchEngine, "update", dropping)


@pytest.mark.slow
@IN_TURNS_AND_ASIDE
def test_weights_that_arrive_are_seen_to(folder: Path, more: list[str]) -> None:
    lines = train(folder, *more)
    assert len(lines) == 3
    assert all(line["canary_gap"] < 1e-5 for line in lines)
    assert all(line["canary_s"] > 0 for line in lines)
    assert "canary_arrived" not in lines[0], "the engine begins with the policy, so that nothing has moved"
    assert [line["canary_arrived"] for line in lines[1:]] == pytest.approx([1, 1], abs=1e-3)


@pytest.mark.slow
@IN_TURNS_AND_ASIDE
def test_frozen_layers_are_handed_over_once(folder: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    update, brought = TorchEngine.update, []

    async def seen(self: TorchEngine, weights: Any, version: int, **how: Any) -> None:
        brought.append((version, "model.embed_tokens.weight" in weights, len(weights)))
        await update(self, weights, version, **how)

    monkeypatch.setattr(TorchEngine, "update", seen)
    scratch = "{hidden: 32, layers: 2, heads: 2, vocab_size: 300, max_context: 256}"
    lines = train(folder, f"model.scratch={scratch}", "train.trainable={top_layers: 1}", "train.lr=1e-2", *more)
    assert all(line["canary_gap"] < 1e-5 for line in lines)
    assert sorted(brought) == [(0, True, brought[0][2]), *((version, False, 10) for version in (1, 2, 3))]


@pytest.mark.slow
@IN_TURNS_AND_ASIDE
@pytest.mark.parametrize("version", [1, 2])
def test_an_update_that_is_lost_is_told_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], version: int
) -> None:
    drop(monkeypatch, version)
    lost = rf"version {version} did not reach the engine: since version {version - 1} .* by -?0% of that"
    with pytest.raises(WeightsLost, match=lost):
        train(folder, *more)
    # The same command sends them again.
    monkeypatch.undo()
    assert [line["iteration"] for line in train(folder, *more)] == [1, 2, 3]


@pytest.mark.slow
def test_it_can_be_turned_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(monkeypatch, 2)
    assert not [name for line in train(folder, "train.canary=false") for name in line if "canary" in name]


@pytest.mark.slow
def test_steps_that_move_nothing_are_no_evidence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(monkeypatch, 2)
    assert all("canary_arrived" not in line for line in train(folder, "train.lr=1e-12"))


class Policies:
    """What an engine and a trainer say, made up: each step moves the trainer's by about `step`."""

    def __init__(self, precision: Precision, *, step: float, gap: float, seed: int = 0) -> None:
        self.rng, self.step, self.gap = np.random.default_rng(seed), step, gap
        self.trained = -np.abs(self.rng.normal(size=(ROWS, TOKENS - 1))).astype(np.float32)
        self.apart = self.normal(gap)  # what kernels make of one policy, whatever its weights
        self.sampled = self.trained + self.apart
        self.canary = Canary([[1] * 64] * ROWS, 256, precision)
        self.canary.begin(self.trained)

    def normal(self, scale: float) -> np.ndarray:
        return self.rng.normal(scale=scale, size=(ROWS, TOKENS - 1)).astype(np.float32)

    def update(self, version: int, arrives: np.ndarray | bool = True) -> None:
        self.trained = self.trained + self.normal(self.step)
        new = self.trained + self.apart + self.normal(self.gap / 2)  # rounding differs from version to version
        self.sampled = np.where(arrives, new, self.sampled)
        self.canary.check(version, self.sampled, self.trained)


def test_small_steps_add_up_until_they_are_evidence() -> None:
    policies = Policies(HALF, step=0.03, gap=0.02)
    for version in range(5):
        policies.update(version)
    with pytest.raises(WeightsLost, match=r"since version \d the trainer's log-probabilities moved by 0\.\d+ nats"):
        for version in range(5, 60):  # no single one of them would tell
            policies.update(version, arrives=False)


def test_one_server_of_several_that_missed_it_is_enough() -> None:
    policies = Policies(FLOAT32, step=0.01, gap=1e-5)
    policies.update(0)
    with pytest.raises(WeightsLost, match="by 0% of that"):
        policies.update(1, arrives=np.array([[True], [True], [False], [True]]))


@pytest.mark.parametrize("step", [0.0, 1e-3, 0.03, 0.3])
def test_rounding_raises_no_alarm(step: float) -> None:
    for seed in range(200):
        policies = Policies(HALF, step=step, gap=0.03, seed=seed)
        for version in range(20):
            policies.update(version)


def test_what_all_prompts_end_with_is_not_compared() -> None:
    end = [7, 8, 9]
    prompts = [[*range(20), k, *end] for k in range(ROWS)]
    assert [row.token_ids.tolist()[-2:] for row in Canary(prompts, 256, HALF)._rows] == [[19, k] for k in range(ROWS)]
    for same in ([end] * ROWS, [end], [[1, 5, *end], [1, *end]]):
        assert [row.token_ids.tolist() for row in Canary(same, 256, HALF)._rows] == same


def test_another_model_on_the_server_is_told_before_the_first_episode() -> None:
    policies = Policies(HALF, step=0.0, gap=1.0)
    with pytest.raises(WeightsLost, match="other weights than version 0 .* precision explains 0.5"):
        policies.update(0)
