"""All that must be seen once on a machine with a GPU: `python -m scripts.gpu [--wheels .gpu-wheels] [--out runs/gpu]`.

Nine phases (docs/gpu.md), eight minutes together, no network, no virtual environment. Each phase is a process with a
time-out; one that fails does not stop the next. `results.json` is rewritten after each, `log.txt` has what they print.
The exit code is 0 if all passed. `--device cpu --smoke` runs the same code at the smallest sizes, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.gpu.expected import compared
from scripts.gpu.packages import beyond
from scripts.gpu.runner import ROOT, Outcome, Step, play

BUDGETS = {
    "doctor": 30, "tests": 80, "exactness": 45, "decode": 65, "mfu": 55,
    "trl": 70, "quickstart": 55, "memory": 35, "profile": 45,
}  # fmt: skip
"""Seconds of each phase on a GPU, in the order of play. The first also waits until torch is read from the disk."""

SMOKE_S = 1200
"""Seconds of each phase without a GPU: only a hang takes so long."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of results.json and log.txt")
    parser.add_argument("--wheels", type=Path, help="folder of `make gpu-wheels`, if the packages are not installed")
    parser.add_argument("--phases", nargs="+", choices=BUDGETS, default=[*BUDGETS], metavar="NAME")
    parser.add_argument("--only-listed", action="store_true", help="hide packages that the GPU machine may not have")
    given = parser.parse_args()
    # Ended from outside, it still ends its phase and writes down how far it came.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agentrl-gpu-") as scratch:
        environment = surroundings(Path(scratch), given.device, given.wheels, only_listed=given.only_listed)
        steps = [step(name, given.device, given.smoke, Path(scratch)) for name in given.phases]
        about = {
            "command": ["python", "-m", "scripts.gpu", *sys.argv[1:]],
            "began": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "commit": commit(),
            "machine": platform.platform(),
        }
        outcomes = play(steps, given.out, environment, about, lambda line: print(line, flush=True))
    print(*summary(outcomes), sep="\n")
    print(f"{time.monotonic() - began:.0f} s; {given.out / 'results.json'}, {given.out / 'log.txt'}")
    return int(any(outcome.status != "passed" for outcome in outcomes.values()))


def step(name: str, device: str, smoke: bool, scratch: Path) -> Step:
    """A phase of BUDGETS."""
    folder = scratch / name
    folder.mkdir()
    command = ["-m", f"scripts.gpu.phases.{name}", "--device", device, "--folder", str(folder), *["--smoke"] * smoke]
    return Step(name, BUDGETS[name] if device == "cuda" else SMOKE_S, command)


def surroundings(scratch: Path, device: str, wheels: Path | None, *, only_listed: bool) -> dict[str, str]:
    """The environment of the phases. Wheels are unpacked first."""
    paths = [str(ROOT)]
    if wheels is not None:
        unpack(wheels, scratch / "packages")
        paths.insert(0, str(scratch / "packages"))
    if only_listed:
        paths.insert(0, str(Path(__file__).with_name("only")))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "AGENTRL_CACHE": str(scratch / "cache"),
        **({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}),
        **({"AGENTRL_GPU_HIDDEN": json.dumps(beyond())} if only_listed else {}),
    }


def unpack(wheels: Path, target: Path) -> None:
    """Installs wheels into a folder of their own.

    Raises:
        SystemExit: there are none, or they are for another Python.
    """
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        sys.exit(f"{wheels} holds no wheels: run `make gpu-wheels` on a machine with a network, and copy the folder")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps",
         "--no-compile", "--no-cache-dir", "--target", target, *found],
        check=False,
    )  # fmt: skip
    if done.returncode:
        here = f"Python {platform.python_version()} on {platform.machine()}"
        sys.exit(f"the wheels in {wheels}, for Python 3.12 on x86-64, cannot be installed here, with {here}")


def commit() -> str:
    """The commit of this checkout, if there is git."""
    try:
        asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return asked.stdout.strip() or "unknown"


def summary(outcomes: Mapping[str, Outcome]) -> Sequence[str]:
    """Lines for people: each figure, and on a GPU what was expected of it."""
    gpu = str(outcomes["doctor"].figures.get("gpu", "")) if "doctor" in outcomes else ""
    lines = []
    for name, outcome in outcomes.items():
        lines.append(f"\n{name}: {outcome.status}, {outcome.seconds:g} of {outcome.budget_s:g} s")
        lines += [
            f"  {figure:<62} {str(value)[:50]:<22} {compared(name, figure, value) if 'H100' in gpu else ''}".rstrip()
            for figure, value in outcome.figures.items()
        ]
    return lines


if __name__ == "__main__":
    sys.exit(main())
