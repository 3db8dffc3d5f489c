"""Profiles a training step and a decode step with torch's profiler: time by operation and kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from agentrl.config.train import TrainSettings
from agentrl.engines.embedded.batch import Batch
from agentrl.training.trainer import Trainer
from benchmarks.decode import round_of
from benchmarks.packing import GROUP, episodes
from benchmarks.random_models import SIZES, random_model
from scripts.gpu.phase import Phase

TURNS, TOP = 5, 12


def profiled(phase: Phase, name: str, work: Callable[[], object]) -> None:
    """Tells what the second of two runs spends its time on."""
    work()
    cuda = phase.device == "cuda"
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]
    if cuda:
        torch.cuda.synchronize()
    with profile(activities=activities) as found:
        began = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        wall_us = 1e6 * (time.perf_counter() - began)
    averages = found.key_averages()
    column = "self_device_time_total" if cuda else "self_cpu_time_total"
    print(averages.table(sort_by=column, row_limit=25, max_name_column_width=60), flush=True)

    def own(event: Any) -> float:
        return float(getattr(event, column))

    # Of operations that start kernels the profiler gives the kernels' time, too: count each kernel once.
    events = [event for event in averages if not cuda or event.device_type == torch.autograd.DeviceType.CUDA]  # type: ignore[attr-defined]
    in_all = sum(map(own, events))
    phase.figure(f"{name}, ms", wall_us / 1e3)
    phase.figure(f"{name}, share of the time that the device works", in_all / wall_us)
    phase.figure(f"{name}, kernels" if cuda else f"{name}, operations", sum(event.count for event in events))
    for event in sorted(events, key=own, reverse=True)[:TOP]:
        phase.figure(f"{name}: {event.key[:70]}", f"{own(event) / in_all:.1%} in {event.count}")


def main() -> None:
    phase = Phase.from_command_line(__doc__)
    size, tree, rows, steps = ("tiny", 256, 2, 2) if phase.smoke else ("0.5b", 8192, 64, 8)
    each = tree * 3 // (4 * GROUP * TURNS * 2)
    samples = episodes(2, TURNS, tree // 4, each, each, SIZES[size]["vocab_size"])
    settings = TrainSettings(precision="bfloat16", packing="tree", minibatch=len(samples), lr=1e-6)
    trainer = Trainer(random_model(size, torch.float32, phase.device), settings)
    profiled(phase, "update", lambda: trainer.update(samples, seed=0))
    batch = Batch(random_model(size, torch.bfloat16, phase.device), max_batch=rows, parked_bytes=0)
    with torch.no_grad():
        profiled(phase, f"{steps} decode steps of {rows} rows", lambda: round_of(batch, rows, tree // 8, steps))
    phase.end()


if __name__ == "__main__":
    main()
