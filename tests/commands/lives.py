"""Runs a command again and again, killed by -9 each time: `python lives.py "POINT:CALL,before POINT:CALL" ARGUMENT...`,
after or before those calls of its life. Then to its end.

Every life is a fork of this process, so that nobody waits for torch to be imported. Prints where each one was killed,
and what the next goes on from.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import agentrl.training.assembly
import agentrl.training.stages.offline  # noqa: F401
from agentrl.cli import app
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.store.checkpoints import latest
from agentrl.store.run_dir import RunDir
from agentrl.training import checkpoint
from agentrl.training.trainer import Trainer

POINTS: dict[str, tuple[Any, str]] = {
    "rollout": (RunDir, "add"),
    "credit": (RunDir, "add_credit"),
    "metrics": (RunDir, "add_metrics"),
    "optimiser step": (Trainer, "_apply"),
    "checkpoint write": (checkpoint, "_flush"),
    "checkpoint pruning": (checkpoint, "prune"),
    "weight sync": (TorchEngine, "update"),
}
"""The functions at which a life may end, by name."""

Death = tuple[str, int, bool]
"""The point, the number of the call, and whether after it."""


def die_at(point: str, call: int, after: bool) -> None:
    """Makes this process kill itself at the `call`-th call of the point's function, before or after it."""
    owner, name = POINTS[point]
    real, calls = getattr(owner, name), 0

    @functools.wraps(real)
    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < call:
            return real(*args, **kwargs)
        if after:
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, deadly)


def live(arguments: list[str], death: Death | None) -> int:
    """One life in a fork. Returns its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if death is not None:
        die_at(*death)
    code = app(arguments, standalone_mode=False)
    os._exit(code or 0)


def death_of(text: str) -> Death:
    """Reads `POINT:CALL` or `before POINT:CALL`."""
    point, _, call = text.removeprefix("before ").partition(":")
    return point, int(call), not text.startswith("before ")


def newest(arguments: list[str]) -> str:
    """The checkpoint that the next life goes on from."""
    found = latest(Path(arguments[arguments.index("--out") + 1]) / "checkpoints")
    return found.name if found is not None else "none"


def main() -> None:
    arguments = sys.argv[2:]
    for death in map(death_of, sys.argv[1].split(",")):
        status = live(arguments, death)
        if not os.WIFSIGNALED(status):
            sys.exit(f"the run ended before it was killed at {death}: {status}")
        print(*death, "newest checkpoint", newest(arguments), flush=True)
    sys.exit(live(arguments, None) != 0)


if __name__ == "__main__":
    main()
