"""A program on this machine ends with the process that started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import until

pytestmark = pytest.mark.slow

DRIVER = """
import asyncio, sys, time
from agentrl.rollouts.programs import host
from agentrl.rollouts.programs.host import run_on_host
from agentrl.rollouts.programs.warm import Warm

async def main():
    short = ["sh", "-c", "exit 3"]
    assert (await run_on_host(short, {}, b"")).code == 3
    if sys.argv[3] == "at once":
        host.not_orphaned = lambda group: time.sleep(600)
    hangs = ["sh", "-c", f"sleep 600 & echo $$ $! > {sys.argv[1]}/new; mv {sys.argv[1]}/new {sys.argv[1]}/pids; wait"]
    if sys.argv[2] == "warm":
        hangs = [sys.executable, sys.argv[1] + "/agent.py", *hangs]
        await run_on_host(hangs, {}, b"", warm=Warm.of(hangs, ["json"], {}))
    await run_on_host(hangs, {}, b"")

asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["later", "at once"])
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_program_and_its_children_end_when_the_driver_is_killed(tmp_path: Path, start: str, when: str) -> None:
    """So does the server of a warm start. At once: before the driver has done anything after the start."""
    (tmp_path / "agent.py").write_text("import subprocess, sys\nsubprocess.run(sys.argv[1:])")
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), start, when])
    try:
        until(lambda: (tmp_path / "pids").exists() or driver.poll() is not None)
        assert driver.poll() is None
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        pids += descendants(driver.pid) if start == "warm" else []
    finally:
        driver.kill()
        driver.wait()
    try:
        until(lambda: not any(alive(pid) for pid in pids))
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Processes below one, but for what watches over all programs: that one ends them, and then itself."""
    children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    named = {each: Path(f"/proc/{each}/cmdline").read_text() for each in children}
    found = [each for each, command in named.items() if "lifeline.py" not in command]
    return found + [below for each in found for below in descendants(each)]


def alive(pid: int) -> bool:
    """Whether a process runs: one that nobody waited for is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
