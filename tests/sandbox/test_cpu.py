"""Processor time: what any process of a sandbox takes counts, and verifiers end what takes too much."""

from __future__ import annotations

import pytest

from agentrl.rewards.grading import Budget
from agentrl.types.sandbox import Backend, SandboxSpec

pytestmark = pytest.mark.slow

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
FORKS = {
    "itself": BURN,
    "a child": f"import os\nif os.fork() == 0:\n    exec({BURN!r})\n    os._exit(0)\nos.wait()\n",
    "a child that nobody waits for": (
        "import os, signal, time\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\nend = os.pipe()\n"
        f"if os.fork() == 0:\n    os.setsid()\n    exec({BURN!r})\n    os._exit(0)\n"
        "os.close(end[1])\nos.read(end[0], 1)\n"
    ),
    "a thread": f"import threading\nt = threading.Thread(target=exec, args=({BURN!r},))\nt.start()\nt.join()\n",
}


@pytest.mark.parametrize("who", FORKS)
async def test_all_that_computes_is_counted(either: Backend, who: str) -> None:
    async with await either.create(SandboxSpec(), label="test") as sandbox:
        if (before := sandbox.cpu_s()) is None:
            pytest.skip("no control group counts processor time here")
        done = await sandbox.exec(["python3", "-c", FORKS[who]])
        after = sandbox.cpu_s()
        assert done.ok, done.text
        assert after is not None
        assert after - before >= 0.3


async def test_a_program_that_computes_too_long_is_ended_and_the_next_runs(either: Backend) -> None:
    async with await either.create(SandboxSpec(), label="test") as sandbox:
        one = Budget(300.0)
        looped = await one.exec(sandbox, ["python3", "-c", "while True: pass"], timeout_s=0.5)
        slept = await one.exec(sandbox, ["sleep", "1000"], timeout_s=0.2)
        assert (looped.outcome, slept.outcome) == ("timeout", "timeout")
        assert (await one.exec(sandbox, ["echo", "1"], timeout_s=10)).stdout == b"1\n"
        assert (await sandbox.health()).processes in (1, 2)  # the loop has a moment to end by itself
        assert sandbox.cpu_s() is None or one.spent_s > 0.1
