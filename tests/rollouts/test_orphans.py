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
import asyncio, sys
from agentrl.rollouts.programs.host import run_on_host

async def main():
    short = ["sh", "-c", "exit 3"]
    assert (await run_on_host(short, {}, b"")).code == 3
    hangs = ["sh", "-c", f"sleep 600 & echo $$ $! > {sys.argv[1]}/new; mv {sys.argv[1]}/new {sys.argv[1]}/pids; wait"]
    await run_on_host(hangs, {}, b"")

asyncio.run(main())
"""


def test_a_program_and_its_children_end_when_the_driver_is_killed(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)])
    try:
        until(lambda: (tmp_path / "pids").exists() or driver.poll() is not None)
        assert driver.poll() is None
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    finally:
        driver.kill()
        driver.wait()
    try:
        until(lambda: not any(alive(pid) for pid in pids))
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether a process runs: one that nobody waited for is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
