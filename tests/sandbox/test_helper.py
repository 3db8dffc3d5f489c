"""Helper processes: what the work in one does to it reaches neither this process nor the next request."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from agentrl.sandbox import helper as helpers
from agentrl.sandbox.helper import Helper, Starved, TooMuch
from agentrl.types.errors import AgentRLError, InfraError
from tests.waiting import stop, until

pytestmark = pytest.mark.slow

WORK = """
import os, signal, sys

def pid(): return os.getpid()
def twice(value): return [value, value]
def spin():
    while True: pass
def power(): return 10 ** 10 ** 9
def eats(): return len([bytes(1 << 20) for _ in range(1 << 20)])
def crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def leaves(): os._exit(0)
def prints(): print("not a reply", flush=True); return 1
def says_much(): return "x" * (80 << 20)
def stops(): os.kill(os.getpid(), signal.SIGSTOP)
def sleeps(path):
    open(path, "w").close()
    signal.pause()
KEPT = []
def keeps(mb):
    KEPT.append(bytes(mb << 20))
    return os.getpid()
def raises(): raise ValueError("no")
def writes(path):
    with open(path, "wb") as file:
        file.seek(600 << 20)
        file.write(b"x")
"""


@pytest.fixture
def helper(tmp_path: Path) -> Helper:
    (tmp_path / "work.py").write_text(WORK)
    return Helper(str(tmp_path / "work.py"), memory_mb=400, size=2, kept=1)


async def ask(helper: Helper, name: str, *arguments: object, cpu_s: float = 10.0) -> object:
    def function() -> None: ...

    function.__name__ = name
    return await helper.ask(function, *arguments, cpu_s=cpu_s)


@pytest.mark.parametrize(
    ("work", "why"),
    [
        ("spin", "no result within 0.5 s"), ("power", "no result within 0.5 s"), ("eats", "memory"),
        ("crashes", r"it ended its process \(SIGSEGV\)"), ("leaves", "no result"), ("says_much", "no result"),
    ],
)  # fmt: skip
async def test_what_takes_too_much_is_ended_alone(helper: Helper, work: str, why: str) -> None:
    """CPU time is what ends it: how busy the machine is does not matter."""
    done, ended = await asyncio.gather(
        ask(helper, "twice", "\ud800"), ask(helper, work, cpu_s=0.5), return_exceptions=True
    )
    assert done == ["\ud800", "\ud800"]
    assert isinstance(ended, TooMuch)
    with pytest.raises(TooMuch, match=why):
        raise ended
    assert await ask(helper, "twice", 1.5) == [1.5, 1.5]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A helper is waited for until it answers, is stopped, or sleeps."""
    line = helpers._line

    def looked(process: subprocess.Popen[bytes], timeout_s: float) -> bytes | None:
        def over() -> bool:
            asleep = (tmp_path / "sleeps").exists() and {"S"}
            return helpers._said(process, 0) or helpers._states(process.pid) in ({"T"}, asleep)

        until(over)
        return line(process, 0)

    monkeypatch.setattr(helpers, "_line", looked)


@pytest.mark.usefixtures("impatient")
async def test_one_that_gets_no_processor_is_asked_again_and_then_a_failure(helper: Helper) -> None:
    """A stopped process stands for one that a busy machine does not run."""
    pid = await ask(helper, "pid")
    assert isinstance(pid, int)
    stop(pid)
    assert await ask(helper, "twice", 1) == [1, 1], "in another process"
    with pytest.raises(Starved, match="did not get 10 s of processor time"):
        await ask(helper, "stops")
    assert issubclass(Starved, InfraError)
    assert not helper._alive


async def test_one_that_does_not_start_in_time_is_no_bug(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helpers, "_START_S", 0.0)
    with pytest.raises(Starved, match="did not start within 0 s"):
        await ask(helper, "pid")
    monkeypatch.undo()
    with pytest.raises(AgentRLError, match="did not start") as broken:
        await ask(Helper("no_such_module"), "pid")
    assert not isinstance(broken.value, InfraError)


@pytest.mark.usefixtures("impatient")
async def test_one_that_sleeps_is_not_starved(helper: Helper, tmp_path: Path) -> None:
    with pytest.raises(TooMuch, match="waits for something that does not come"):
        await ask(helper, "sleeps", str(tmp_path / "sleeps"))


async def test_what_fails_keeps_its_process(helper: Helper, tmp_path: Path) -> None:
    pid = await ask(helper, "pid")
    with pytest.raises(AgentRLError, match="raises raised ValueError: no"):
        await ask(helper, "raises")
    with pytest.raises(AgentRLError, match="File too large"):  # no helper fills a disk
        await ask(helper, "writes", str(tmp_path / "big"))
    assert await ask(helper, "prints") == 1
    assert await ask(helper, "pid") == pid


async def test_one_that_kept_much_memory_serves_nobody_else(helper: Helper) -> None:
    pid = await ask(helper, "keeps", 50)
    assert await ask(helper, "pid") == pid
    assert await ask(helper, "keeps", 200) == pid
    assert await ask(helper, "pid") != pid


async def test_only_so_many_processes_wait(helper: Helper) -> None:
    await asyncio.gather(*(ask(helper, "pid") for _ in range(8)))
    assert len(helper._alive) == 1
