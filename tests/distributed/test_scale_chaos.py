"""Four kills of whatever a training has started beside the driver: rollout workers and a trainer rank."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import Started
from tests.counting import metrics
from tests.sound import assert_sound
from tests.waiting import until

from .conftest import train_on_two_ranks
from .test_worker_pool import children

pytestmark = [pytest.mark.slow, pytest.mark.family("distributed")]

TICKETS = """

from pathlib import Path
HERE = Path(__file__).parent

class Admitted(Counter):
    "Each episode takes a ticket, until there is free entrance."
    async def open(self, task, sandbox):
        await super().open(task, sandbox)
        while not (HERE / "free").exists() and not self.taken():
            await asyncio.sleep(0.05)

    def taken(self):
        for ticket in HERE.glob("ticket-*"):
            try: ticket.unlink()
            except FileNotFoundError: continue
            return True
        return False
"""
SHORT = "train.iterations=3"
SETS = (
    "scale.use=process", "scale.trainer_ranks=2", "scale.rollout_workers=2", "scale.restarts=100", "limits.retries=10",
    "tools=[./task.py:Admitted]", SHORT,
)  # fmt: skip
KILLS, OF_A_RANK = 4, 2


class Training:
    """A training that was started, and what it has started."""

    def __init__(self, driver: Started) -> None:
        self.driver = driver
        self.workers: list[int] = []
        self.ranks: list[int] = []

    def wait_until(self, condition: Callable[[], object]) -> None:
        until(lambda: self.driver.poll() is not None or condition())
        assert self.driver.poll() is None, self.driver.said()

    def runs(self) -> bool:
        """True if there is a worker and a rank. A worker that dies without an episode is replaced for the next one."""
        try:
            said = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children(self.driver.pid)}
        except (ProcessLookupError, FileNotFoundError):  # one has just ended
            return False
        ours = {int(pid): command for pid, command in said.items() if b"agentrl.distributed.process" in command}
        self.ranks = [pid for pid, command in ours.items() if b"trainer rank" in command]
        self.workers = [pid for pid in ours if pid not in self.ranks]
        return bool(self.workers and self.ranks)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.wait_until(lambda: self.runs() and pid not in (*self.workers, *self.ranks))


def test_four_kills_beside_the_driver_change_no_number(trainable: Path) -> None:
    here, rng = trainable.parent, random.Random(0)
    with (trainable / "task.py").open("a") as code:
        code.write(TICKETS)
    train_on_two_ranks(trainable, "whole", SHORT)
    sets = (part for each in SETS for part in ("--set", each))
    command = ["-m", "agentrl.cli", "train", "counting", "--out", "killed", "--json", *sets]
    training = Training(Started(*command, cwd=here))
    training.wait_until(training.runs)
    for kill in range(1, KILLS + 1):
        for number in range(rng.randint(1, 4)):
            (trainable / f"ticket-{kill}-{number}").touch()
        training.wait_until(lambda: training.runs() and not [*trainable.glob("ticket-*")])
        # One is of a rank: without it the driver starts again, which takes many seconds.
        training.kill(training.ranks[0] if kill == OF_A_RANK else rng.choice(training.workers))
    (trainable / "free").touch()
    assert training.driver.wait() == 0, training.driver.said()
    document, log = training.driver.said()
    assert "was killed by SIGKILL\nrestarting from the last checkpoint" in log
    assert json.loads(document)["run"] == "killed", "the process that took its place writes the document"
    assert metrics(here / "killed") == metrics(here / "whole")
    assert_sound(here / "killed")
