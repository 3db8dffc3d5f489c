"""The trainer: tokens a second and MFU of a gradient, prefix trees against padded rows (`benchmarks/mfu.py`)."""

from __future__ import annotations

import torch

from benchmarks.mfu import measure
from benchmarks.packing import GROUP, episodes
from benchmarks.random_models import SIZES, random_model
from scripts.gpu.phase import Phase

PEAK = 989.0
"""TFLOP/s of an H100 (SXM) in dense bfloat16, by its data sheet."""

TURNS = 5
BATCH = {"0.5b": 4, "1.5b": 2}
"""Padded rows of a pass: without activation checkpointing 8 rows of 1.5b would need more than 80 GB."""


def main() -> None:
    phase = Phase.from_command_line(__doc__)
    sizes, tree, groups, rounds = (("tiny",), 256, 2, 1) if phase.smoke else (("0.5b", "1.5b"), 8192, 4, 3)
    each = tree * 3 // (4 * GROUP * TURNS * 2)  # a prompt takes a quarter of the tree
    for size in sizes:
        model = random_model(size, torch.float32, phase.device)
        rows = episodes(groups, TURNS, tree // 4, each, each, SIZES[size]["vocab_size"])
        for found in measure(model, rows, tree, rounds, PEAK, "bfloat16", BATCH.get(size, GROUP)):
            name = f"{size}, {found['layout'].split()[0]}"
            phase.figure(f"{name}, MFU", found["mfu"])
            phase.figure(f"{name}, ms", found["ms"])
            phase.figure(f"{name}, forwarded/s", found["forwarded_per_s"])
            phase.figure(f"{name}, episode tokens/s", found["episode_tokens_per_s"])
            phase.figure(f"{name}, forwarded", found["forwarded"])
        del model
        phase.free_models()
    phase.end()


if __name__ == "__main__":
    main()
