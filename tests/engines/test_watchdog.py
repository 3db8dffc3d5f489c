"""A server ends with whoever started it, and takes its own processes along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.engines.vllm import watchdog
from tests.waiting import until

pytestmark = pytest.mark.slow

STARTER = """
import os, subprocess, sys
subprocess.Popen([sys.executable, sys.argv[1], str(os.getpid()), "1", *sys.argv[2:]], start_new_session=True).wait()
"""
STUBBORN = "trap '' TERM; sleep 300 & echo $! > {pids}; echo $$ >> {pids}; wait"


def alive(pids: Path) -> list[int]:
    numbers = [int(line) for line in pids.read_text().split()] if pids.exists() else []
    return [number for number in numbers if (Path("/proc") / str(number)).exists()]


@pytest.mark.parametrize("who", ["starter", "watchdog"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_stubborn_server_ends_with_its_starter_and_watchdog(tmp_path: Path, who: str, how: int) -> None:
    pids = tmp_path / "pids"
    command = ["sh", "-c", STUBBORN.format(pids=pids)]
    starter = subprocess.Popen([sys.executable, "-c", STARTER, watchdog.__file__, *command])
    until(lambda: len(alive(pids)) == 2)
    (child,) = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
    os.kill(starter.pid if who == "starter" else int(child), how)
    starter.wait()
    until(lambda: not alive(pids))


def test_what_a_server_leaves_behind_is_ended_and_its_status_told(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = ["sh", "-c", f"sleep 300 & echo $! > {pids}; exit 7"]
    done = subprocess.run([sys.executable, "-c", STARTER.replace(".wait()", ".wait() == 7 or sys.exit(9)"),
                           watchdog.__file__, *command], check=False)  # fmt: skip
    assert done.returncode == 0
    until(lambda: not alive(pids))
