"""Runs a command again and again, killed by -9 each time: `python lives.py KILLS SEED ARGUMENT...` at random points,
`python lives.py "POINT:CALL,POINT:CALL" - ARGUMENT...` after those calls.

Every life is a fork of this process, so that nobody waits for torch to be imported. Prints where each one was killed,
and what the next goes on from.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agentrl.train.assembly
import agentrl.train.stages.offline  # noqa: F401
from agentrl.cli import app
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.store.checkpoints import latest
from agentrl.store.run_dir import RunDir
from agentrl.train import checkpoint
from agentrl.train.trainer import Trainer

POINTS: dict[str, tuple[Any, str, int]] = {
    "rollout": (RunDir, "add", 30),
    "credit": (RunDir, "add_credit", 15),
    "metrics": (RunDir, "add_metrics", 2),
    "optimiser step": (Trainer, "_apply", 4),
    "checkpoint write": (checkpoint, "_flush", 12),
    "checkpoint pruning": (checkpoint, "prune", 2),
    "weight sync": (TorchEngine, "update", 3),
}
"""By name: the function, and how often it may be called before the kill at most."""


def die_at(point: str, call: int, after: bool) -> None:
    """Makes this process kill itself at the `call`-th call of the point's function, before or after it."""
    owner, name, _ = POINTS[point]
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


def live(arguments: list[str], death: tuple[str, int, bool] | None) -> int:
    """One life in a fork. Returns its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if death is not None:
        die_at(*death)
    code = app(arguments, standalone_mode=False)
    os._exit(code or 0)


def deaths(kills: str, seed: str) -> Iterator[tuple[str, int, bool]]:
    """Where to die: as many times at random, or as they are listed."""
    if not kills.isdigit():
        for listed in kills.split(","):
            point, _, call = listed.partition(":")
            yield point, int(call), True
        return
    rng = random.Random(int(seed))
    for _ in range(int(kills)):
        point = rng.choice([*POINTS])
        yield point, rng.randint(1, POINTS[point][2]), rng.random() < 0.5


def newest(arguments: list[str]) -> str:
    """The checkpoint that the next life goes on from."""
    found = latest(Path(arguments[arguments.index("--out") + 1]) / "checkpoints")
    return found.name if found is not None else "none"


def main() -> None:
    arguments = sys.argv[3:]
    for death in deaths(*sys.argv[1:3]):
        status = live(arguments, death)
        if not os.WIFSIGNALED(status):
            sys.exit(f"the run ended before it was killed at {death}: {status}")
        print(*death, "newest checkpoint", newest(arguments), flush=True)
    sys.exit(live(arguments, None) != 0)


if __name__ == "__main__":
    main()
