"""Twenty kills of whatever a training has started beside the driver: rollout workers and a trainer rank."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.command import Started, agentrl
from tests.commands.test_chaos import TRAINING
from tests.commands.test_train import metrics

from .test_worker_pool import invariants_hold

KILLS, ITERATIONS = 20, 30
RANKS = ("--set", "scale.use=process", "--set", "scale.trainer_ranks=2", "--set", f"train.iterations={ITERATIONS}")
WORKERS = ("--set", "scale.rollout_workers=2", "--set", "scale.restarts=100", "--set", "limits.retries=10",
        "--set", "tools=[{use: ./task.py:Counter, delay: 0.1}]")  # fmt: skip


def children(driver: int) -> tuple[list[int], list[int]]:
    """Rollout workers and trainer ranks of a driver, by their command."""
    pids = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    said = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    ours = [pid for pid, command in said.items() if b"agentrl.distributed.process" in command]
    ranks = [pid for pid in ours if b"trainer rank" in said[pid]]
    return [pid for pid in ours if pid not in ranks], ranks


@pytest.mark.timeout(900)  # every fifth kill starts a trainer again
def test_twenty_kills_beside_the_driver_change_no_number(counting: Path) -> None:
    recipe, here, rng = counting / "recipe.yaml", counting.parent, random.Random(0)
    recipe.write_text(recipe.read_text() + TRAINING)
    assert agentrl("train", "counting", "--out", "whole", *RANKS, cwd=here, timeout=600).returncode == 0
    driver = Started("-m", "agentrl.cli", "train", "counting", "--out", "killed", *RANKS, *WORKERS, cwd=here)
    kills = 0
    while driver.poll() is None:
        try:
            workers, ranks = children(driver.pid)
            if kills < KILLS and (len(workers), len(ranks)) == (2, 1):  # all have started again
                time.sleep(rng.uniform(0.0, 0.6))
                # Most kills are of workers: without its rank the driver starts again, which takes many seconds.
                os.kill(ranks[0] if kills % 5 == 4 else rng.choice(workers), signal.SIGKILL)
                kills += 1
        except (ProcessLookupError, FileNotFoundError):
            continue  # it has just ended
        time.sleep(0.02)
    assert driver.returncode == 0
    assert kills == KILLS
    assert metrics(here / "killed") == metrics(here / "whole")
    invariants_hold(here / "killed")
