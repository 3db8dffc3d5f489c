"""The torch engine: tokens a second by the number of rows, in bfloat16 (`benchmarks/decode.py`)."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentrl.engines.embedded.batch import Batch
from benchmarks.decode import measure, round_of
from benchmarks.random_models import random_model
from scripts.gpu.phase import Phase

VIEWS = {"view", "_unsafe_view", "transpose", "slice", "select", "split", "split_with_sizes", "expand", "squeeze",
         "unsqueeze", "t", "permute", "detach", "alias", "reshape", "unbind", "as_strided", "empty"}  # fmt: skip
"""Operations that launch nothing on a GPU."""


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that launch a kernel on a GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ not in VIEWS
        return func(*args, **(kwargs or {}))


def launches(model: Any, rows: int) -> float:
    """Operations of a decode step that launch something."""
    counts: list[int] = []
    for steps in (2, 4):
        with Launches() as counted:
            round_of(Batch(model, max_batch=rows, parked_bytes=0), rows, 16, steps)
        counts.append(counted.count)
    return (counts[1] - counts[0]) / 2


def main() -> None:
    phase = Phase.from_command_line(__doc__)
    sizes = ("tiny",) if phase.smoke else ("0.5b", "1.5b")
    batches, context, steps = ((1, 8), 16, 4) if phase.smoke else ((1, 8, 32, 64, 256), 1024, 96)
    for size in sizes:
        model = random_model(size, torch.bfloat16, phase.device)
        with torch.no_grad():
            phase.figure(f"{size}, operations a step", launches(model, 1))
            for rows in batches:
                found = measure(model, rows, context, steps)
                phase.figure(f"{size}, {rows} rows, tokens/s", found["tokens_per_s"])
                phase.figure(f"{size}, {rows} rows, ms/step", found["ms_per_step"])
                phase.figure(f"{size}, {rows} rows, first round, tokens/s", found["first_round_tokens_per_s"])
                phase.figure(f"{size}, {rows} rows, GB/s", found["gb_per_s"])
            phase.figure(f"{size}, {batches[-1]} rows, ms to draw", found["draw_ms"])
        del model
        phase.free_models()
    phase.end()


if __name__ == "__main__":
    main()
