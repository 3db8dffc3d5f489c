"""The machine: what `agentrl doctor` says, versions, and what the GPU reaches by itself, without agentrl."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable

import torch

from agentrl.commands.doctor import examine
from agentrl.training.model.attention import kernel_takes
from scripts.gpu.phase import Phase

PACKAGES = ("transformers", "peft", "trl", "numpy", "pydantic")
NEEDED = ("Python 3.11 or newer", "torch (", "transformers (")


def seconds(work: Callable[[], object], device: str, times: int) -> float:
    """Seconds of one of `times` runs, after one that warms up."""
    for repeat in (1, times):
        _wait(device)
        began = time.perf_counter()
        for _ in range(repeat):
            work()
        _wait(device)
    return (time.perf_counter() - began) / times


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    phase = Phase.from_command_line(__doc__)
    for finding in examine():
        print(f"{'ok ' if finding.ok else 'no '} {finding.what}: {finding.found} {finding.fix}")
        phase.check(finding.ok or not finding.what.startswith(NEEDED), f"{finding.what}: {finding.found}")
    phase.figure("python", platform.python_version())
    phase.figure("torch", torch.__version__)
    for name in PACKAGES:
        try:
            phase.figure(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            phase.figure(name, "missing")
    takes = kernel_takes()
    phase.figure("attention kernel", "without window_size" if "window_size" not in takes else
                 "grouped heads" if "enable_gqa" in takes else "equal heads")  # fmt: skip
    if phase.device == "cuda":
        if not torch.cuda.is_available():
            phase.check(False, "torch sees no GPU")
            phase.end()
        about = torch.cuda.get_device_properties(0)
        phase.figure("gpu", about.name)
        phase.figure("memory GB", about.total_memory / 1e9)
        phase.figure("capability", f"{about.major}.{about.minor}")
        phase.figure("cuda", torch.version.cuda)
    size = 256 if phase.smoke else 8192
    a, b = (torch.randn(size, size, device=phase.device, dtype=torch.bfloat16) for _ in range(2))
    took = seconds(lambda: a @ b, phase.device, 10)
    phase.figure("bf16 product TFLOP/s", 2 * size**3 / took / 1e12)
    source = torch.empty(1 << (20 if phase.smoke else 31), dtype=torch.uint8, device=phase.device)
    target = torch.empty_like(source)
    took = seconds(lambda: target.copy_(source), phase.device, 10)
    phase.figure("copy GB/s", 2 * source.nbytes / took / 1e9)
    tiny = torch.zeros(8, device=phase.device)
    phase.figure("operation us", 1e6 * seconds(lambda: tiny.add_(1), phase.device, 100 if phase.smoke else 2000))
    phase.end()


if __name__ == "__main__":
    main()
