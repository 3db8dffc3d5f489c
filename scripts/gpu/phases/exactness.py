"""Log-probabilities of sampled tokens, the torch engine's beside the trainer's: by precision and layout.

Importance weights are made of the gap between the two. In float32 it must be next to nothing. In bfloat16 each side is
away from the trainer in float32 by what rounding does; neither may be away much further than the other. The model's
weights are random; its logits are as large as those of a trained model.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.config.train import TrainSettings
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.models.load import cast_weights
from agentrl.training.trainer import Trainer
from agentrl.types.engine import Sampling
from agentrl.types.sample import TrainingSample
from benchmarks.random_models import random_model
from scripts.gpu.phase import Phase

GROUP, TURNS = 8, 3
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "float32": {"tree": {"packing": "tree"}, "rows": {"packing": "rows"}},
    "bfloat16": {
        "tree": {"packing": "tree", "precision": "bfloat16"},
        "rows": {"packing": "rows", "precision": "bfloat16"},
        "tree, float32 head": {"packing": "tree", "precision": "bfloat16", "head_precision": "float32"},
    },
}
"""By type of the engine's weights: settings of the trainers that it is compared with."""

EXACT = 1e-3
"""Largest gap in float32."""

TIMES = 3.0
"""Limit: one side may be so many times further from float32 than the other, on average."""


async def play(engine: TorchEngine, groups: int, prompt: int, tokens: int) -> list[TrainingSample]:
    """Rows of episodes of some turns; the members of a group share a prompt."""

    async def episode(group: int, member: int) -> TrainingSample:
        rng, name = np.random.default_rng((group, member)), f"g{group}/e{member}"
        ids = np.random.default_rng(group).integers(3, engine.vocab_size, prompt).tolist()
        behaviour, spans = [0.0] * len(ids), []
        for turn in range(TURNS):
            said = await engine.generate(ids, Sampling(max_tokens=tokens, seed=1000 * group + member), name)
            spans.append((turn, len(ids), len(ids) + len(said.token_ids)))
            seen = rng.integers(3, engine.vocab_size, tokens // 2).tolist() if turn < TURNS - 1 else []
            ids = ids + said.token_ids + seen
            behaviour += [*said.logprobs, *[0.0] * len(seen)]
        engine.end_session(name)
        mask = np.zeros(len(ids), np.bool_)
        for _, start, end in spans:
            mask[start:end] = True
        column = np.array(behaviour, np.float32)
        return TrainingSample(np.array(ids), mask, column, np.zeros_like(column), name, f"g{group}", 0, 1.0, spans)

    return list(await asyncio.gather(*(episode(g, m) for g in range(groups) for m in range(GROUP))))


async def sampled(model: Any, dtype: str, groups: int, prompt: int, tokens: int) -> list[TrainingSample]:
    """Rows of an engine with a copy of the model in another type."""
    engine = TorchEngine(cast_weights(copy.deepcopy(model), getattr(torch, dtype)), max_batch=groups * GROUP)
    try:
        return await play(engine, groups, prompt, tokens)
    finally:
        await engine.close()


def trained(columns: Sequence[NDArray[np.float32]], rows: Sequence[TrainingSample]) -> NDArray[np.float32]:
    """The entries of sampled tokens, row after row."""
    return np.concatenate([column[row.loss_mask] for column, row in zip(columns, rows, strict=True)])


def main() -> None:
    phase = Phase.from_command_line(__doc__)
    size, groups, prompt, tokens = ("tiny", 1, 20, 6) if phase.smoke else ("0.5b", 4, 256, 96)
    model = random_model(size, torch.float32, phase.device, sharp=True)
    for dtype, trainers in LAYOUTS.items():
        rows = asyncio.run(sampled(model, dtype, groups, prompt, tokens))
        engine = trained([row.behaviour_logprob for row in rows], rows)
        phase.figure(f"{dtype}, nats a token", -float(engine.mean()))
        exact = trained(Trainer(model, TrainSettings(packing="tree")).logprobs(rows), rows)
        engines = float(np.abs(engine - exact).mean())
        if dtype != "float32":
            phase.figure(f"{dtype}, engine from float32, mean", engines)
        for name, settings in trainers.items():
            trainer = trained(Trainer(model, TrainSettings(**settings)).logprobs(rows), rows)
            gap, own = np.abs(trainer - engine), float(np.abs(trainer - exact).mean())
            phase.figure(f"{dtype}, {name}, mean gap", float(gap.mean()))
            phase.figure(f"{dtype}, {name}, largest gap", float(gap.max()))
            if dtype == "float32":
                phase.check(gap.max() < EXACT, f"{dtype}, {name}: engine and trainer differ by {gap.max():.2g}")
                continue
            phase.figure(f"{dtype}, {name}, trainer from float32, mean", own)
            phase.figure(f"{dtype}, {name}, ratios beyond 0.9 to 1.1", float((np.exp(gap) > 1.1).mean()))
            apart = f"{dtype}, {name}: from float32 the trainer is away by {own:.2g}, the engine by {engines:.2g}"
            phase.check(own < TIMES * engines, apart)
            phase.check(engines < TIMES * own or "head_precision" in settings, apart)
    phase.end()


if __name__ == "__main__":
    main()
