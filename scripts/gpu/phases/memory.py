"""Memory of a training step beside its estimate (`scripts/gpu/estimate.py`)."""

from __future__ import annotations

from typing import Any

import torch

from agentrl.config.train import TrainSettings
from agentrl.training.model.attention import kernel_takes
from agentrl.training.model.packing import pack
from agentrl.training.trainer import Trainer
from benchmarks.packing import GROUP, episodes
from benchmarks.random_models import SIZES, random_model
from scripts.gpu.estimate import estimate
from scripts.gpu.peak import Peak
from scripts.gpu.phase import Phase

TURNS = 5
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "0.5b": ("0.5b", 16384, {}),
    "1.5b, activation checkpointing": ("1.5b", 16384, {"activation_checkpointing": True}),
    "1.5b": ("1.5b", 8192, {}),
}
"""By name: the model, the unique tokens of a tree, which are the budget of a pass, too, and settings."""

SMALLEST: dict[str, tuple[str, int, dict[str, Any]]] = {
    "small": ("small", 1024, {}),
    "small, activation checkpointing": ("small", 1024, {"activation_checkpointing": True}),
}
NEAR = (0.8, 1.25)
"""Limits of the ratio of measured memory to the estimate."""


def measured(phase: Phase, size: str, tree: int, settings: dict[str, Any]) -> tuple[int, int]:
    """The peak of the second of two updates, and the estimate, in bytes."""
    each = tree * 3 // (4 * GROUP * TURNS * 2)
    rows = episodes(2, TURNS, tree // 4, each, each, SIZES[size]["vocab_size"])
    own = TrainSettings(
        precision="bfloat16", packing="tree", token_budget=tree, minibatch=len(rows), lr=1e-6, **settings
    )
    model = random_model(size, torch.float32, phase.device)
    trainer = Trainer(model, own)
    trainer.update(rows, seed=0)
    repeats = phase.device == "cuda" and "enable_gqa" not in kernel_takes()
    expected = sum(estimate(model.config, own, pack(rows, tree), repeats=repeats).values())
    if phase.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        trainer.update(rows, seed=1)
        return torch.cuda.max_memory_allocated(), expected
    states = [value for entry in trainer.optimizer.state.values() for value in entry.values()]
    with Peak([*model.parameters(), *model.buffers(), *states]) as peak:
        trainer.update(rows, seed=1)
    return peak.bytes, expected


def main() -> None:
    phase = Phase.from_command_line(__doc__)
    for name, case in (SMALLEST if phase.smoke else CASES).items():
        try:
            peak, expected = measured(phase, *case)
        except torch.OutOfMemoryError as error:
            phase.check(False, f"{name}: {error}".partition("\n")[0])
            continue
        finally:
            phase.free_models()
        phase.figure(f"{name}, GB", peak / 1e9)
        phase.figure(f"{name}, estimated GB", expected / 1e9)
        phase.figure(f"{name}, of the estimate", peak / expected)
        phase.check(
            NEAR[0] < peak / expected < NEAR[1],
            f"{name}: {peak / 1e9:.3g} GB, {expected / 1e9:.3g} GB were expected",
        )
    phase.end()


if __name__ == "__main__":
    main()
