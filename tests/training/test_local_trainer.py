"""The local trainer on a tiny model: what it measures, what an engine gets, and what it says of the layout."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agentrl.config.loader import load_recipe
from agentrl.training.backend import Start, TrainingJob
from agentrl.training.checkpoint import write_policy
from agentrl.training.compute_thread import Inline
from agentrl.training.local import LocalTrainer
from agentrl.training.parallel.ranks import Ranks
from agentrl.types.engine import Adapter
from agentrl.types.sample import TrainingSample
from tests.counting import TINY, write
from tests.training.make import make_rows

TRAIN = "train: {iterations: 1, groups: 2, group_size: 4, lr: 1.0e-2, minibatch: 100}\n"


class Told(LocalTrainer):
    """A local trainer of the counting recipe, with the lines that it reports to the user."""

    def __init__(self, folder: Path, *sets: str, needs: tuple[str, ...] = ()) -> None:
        recipe = load_recipe(str(write(folder / "counting", TINY + TRAIN)), sets)
        assert recipe.train is not None
        self.told: list[str] = []
        start = Start(texts=["Count to 3.", "4"])
        job = TrainingJob(recipe, recipe.train, start, needs, Ranks(), Inline(), lambda sha: b"", self.told.append)
        super().__init__(job)

    async def ready(self) -> Any:
        """Opens and begins. Returns the model."""
        loaded = await self.open()
        await self.begin()
        return loaded.model


def engine(**flags: bool) -> Any:
    """The flags of an engine that say what it takes."""
    off = {"shares_gpu": False, "takes_adapters": False, "takes_changes": False, "checkpoint_names": False}
    return SimpleNamespace(**{**off, **flags})


def rewarded() -> list[TrainingSample]:
    """Rows of episodes that are good and bad in turns."""
    return [dataclasses.replace(row, reward=float(k % 2)) for k, row in enumerate(make_rows())]


def far_apart(ours: list[Any], theirs: list[Any]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


async def test_a_tree_is_the_layout_that_needs_no_word(tmp_path: Path) -> None:
    trainer = Told(tmp_path)
    await trainer.ready()
    assert trainer.told == []


async def test_a_model_without_the_attention_interface_trains_by_rows_and_says_why(tmp_path: Path) -> None:
    trainer = Told(tmp_path)
    model: Any = (await trainer.open()).model
    model._supports_attention_backend = False
    await trainer.begin()
    (line,) = trainer.told
    assert line.startswith("packing: rows (no shared prefixes), because ")
    assert "the model does not use transformers' attention interface" in line
    rows = make_rows()
    assert [len(each) for each in await trainer.logprobs(rows)] == [len(row.token_ids) for row in rows]


async def test_the_average_of_the_policy_stays_behind_it(tmp_path: Path) -> None:
    trainer = Told(tmp_path, "train.kl={coef: 0.1, to: ema_reference}", "train.ema_reference={decay: 0.99}")
    await trainer.ready()
    rows = make_rows()
    before = await trainer.logprobs(rows)
    assert far_apart(await trainer.column("ema_logprob", rows), before) < 1e-6
    await trainer.update(rows, seed=0, progress=0.0)
    moved = far_apart(await trainer.logprobs(rows), before)
    assert 0 < far_apart(await trainer.column("ema_logprob", rows), before) < 0.2 * moved


async def test_a_critic_of_progress_learns_from_the_rewards_of_the_samples(tmp_path: Path) -> None:
    trainer = Told(tmp_path, "train.critic={lr: 1e-2, steps: 3}", needs=("progress",))
    await trainer.ready()
    rows = rewarded()
    before = await trainer.column("progress", rows)
    metrics = await trainer.fit_column("progress", rows)
    assert metrics
    assert all(np.isfinite(value) for value in metrics.values())
    assert far_apart(await trainer.column("progress", rows), before) > 0


async def test_the_weights_of_a_checkpoint_are_published_in_the_engines_type(tmp_path: Path) -> None:
    trainer = Told(tmp_path, "model.dtype=bfloat16")
    model = await trainer.ready()
    earlier = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    (tmp_path / "it-00000").mkdir()
    write_policy(tmp_path / "it-00000", model, trainer._loaded.save_described)
    await trainer.update(make_rows(), seed=0, progress=0.0)
    published = await trainer.publish(engine(), tmp_path / "it-00000")
    assert {tensor.dtype for tensor in published.values()} == {torch.bfloat16}
    assert all(torch.equal(published[name], tensor.bfloat16()) for name, tensor in earlier.items())
    now = await trainer.publish(engine())
    assert any(not torch.equal(now[name], published[name]) for name in published), "the policy has moved since"


async def test_the_memory_of_a_shared_gpu_is_freed_before_its_engine_gets_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Told(tmp_path)
    await trainer.ready()
    freed: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append("cache"))
    await trainer.publish(engine())
    assert freed == []
    weights = await trainer.publish(engine(shares_gpu=True))
    assert freed == ["cache"]
    assert {tensor.device.type for tensor in weights.values()} == {"cpu"}


async def test_an_engine_that_takes_adapters_gets_them_alone_and_the_base_on_request(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="pip install 'agentrl-framework[lora]'")
    first = Told(tmp_path)
    await first.open()
    path = tmp_path / "model"
    path.mkdir()
    write_policy(path, first._loaded.model, first._loaded.save_described)
    (tmp_path / "second").mkdir()
    lora = ("warm_start=null", f"model={{path: {path}, dtype: float32}}", "train.lora={rank: 2}")
    trainer = Told(tmp_path / "second", *lora)
    base = copy.deepcopy((await trainer.open()).model.state_dict())
    await trainer.begin()
    await trainer.update(make_rows(), seed=0, progress=0.0)
    given = await trainer.publish(engine(takes_adapters=True))
    assert isinstance(given, Adapter)
    (tmp_path / "adapter").mkdir()
    given.save(tmp_path / "adapter")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert all(".lora_" in name for name in saved)
    assert any(tensor.any() for name, tensor in saved.items() if ".lora_B" in name), "the step has changed them"
    below = await given.base()
    assert below.keys() == base.keys()
    assert all(torch.equal(below[name], base[name]) for name in base)
    merged = await trainer.publish(engine())
    assert any(not torch.equal(merged[name], base[name]) for name in base), "an engine without them gets both in one"
