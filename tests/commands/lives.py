"""Runs a command again and again, killed by -9 at a random point each time: `python lives.py KILLS SEED ARGUMENT...`.

Every life is a fork of this process, so that nobody waits for torch to be imported. Prints where each one was killed.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import sys
from typing import Any

import agentrl.train.async_loop
import agentrl.train.loop  # noqa: F401
from agentrl.cli import app
from agentrl.engines.embedded.engine import TorchEngine
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


def main() -> None:
    kills, rng, arguments = int(sys.argv[1]), random.Random(int(sys.argv[2])), sys.argv[3:]
    for _ in range(kills):
        point = rng.choice([*POINTS])
        death = point, rng.randint(1, POINTS[point][2]), rng.random() < 0.5
        status = live(arguments, death)
        if not os.WIFSIGNALED(status):
            sys.exit(f"the run ended before it was killed at {death}: {status}")
        print(*death, flush=True)
    sys.exit(live(arguments, None) != 0)


if __name__ == "__main__":
    main()
