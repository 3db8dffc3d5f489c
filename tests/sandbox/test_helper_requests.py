"""A helper's protocol: what its process answers, and what becomes of a process that does not. No process is started."""

from __future__ import annotations

import io
import json
import resource
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.sandbox import helper as helpers
from agentrl.sandbox.helper import Helper, Starved, TooMuch

WORK = """
PREPARED = []
def prepare(): PREPARED.append(1)
def twice(value): print("not a reply"); return [value] * 2 * len(PREPARED)
def eats(): raise MemoryError
def raises(): raise ValueError("no")
"""


class Served:
    """Runs the loop of a helper's process here, on some requests. Notes limits instead of setting them."""

    def __init__(self, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.limits: dict[int, int] = {}
        self.timers: list[float] = []
        self._module, self._monkeypatch = module, monkeypatch
        kernel = {name: getattr(resource, name) for name in ("RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_FSIZE", "getpagesize")}
        clock = {name: getattr(signal, name) for name in ("SIGINT", "SIG_IGN", "ITIMER_PROF")}
        clock |= {"signal": lambda number, action: None, "setitimer": lambda kind, s: self.timers.append(s)}
        monkeypatch.setattr(helpers, "resource", SimpleNamespace(**kernel, setrlimit=self._limit))
        monkeypatch.setattr(helpers, "signal", SimpleNamespace(**clock))

    def _limit(self, kind: int, limit: tuple[int, int]) -> None:
        assert limit[0] == limit[1]
        self.limits[kind] = limit[0]

    def __call__(self, *requests: list[Any], memory_mb: int = 1 << 30) -> list[Any]:
        answers = io.StringIO()
        self._monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{json.dumps(each)}\n" for each in requests)))
        self._monkeypatch.setattr(sys, "stdout", answers)
        helpers._serve(str(self._module), memory_mb)
        ready, *lines = answers.getvalue().splitlines()
        assert ready == "ready"
        return [json.loads(line) for line in lines]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    (tmp_path / "asked.py").write_text(WORK)
    return Served(tmp_path / "asked.py", monkeypatch)


def test_every_request_has_one_reply_and_its_own_time(served: Served) -> None:
    assert served(["twice", ["a"], 1.5], ["eats", [], 2.0], ["raises", [], 3.0]) == [
        ["ok", ["a", "a"], False],
        ["memory", "", False],
        ["raised", "ValueError: no", False],
    ]
    assert served.timers == [1.5, 0, 2.0, 0, 3.0, 0]
    assert served.limits == {
        resource.RLIMIT_AS: 1 << 50,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: helpers._FILE,
    }


def test_a_reply_says_that_little_memory_is_left(served: Served) -> None:
    used_mb = helpers._address_space() >> 20
    assert served(["twice", [1], 1.0], memory_mb=used_mb) == [["ok", [1, 1], True]]
    assert served(["twice", [1], 1.0], memory_mb=used_mb * 4) == [["ok", [1, 1], False]]


class Pipe:
    """The entry of a process; closed: nobody reads it."""

    def __init__(self, closed: bool) -> None:
        self._closed = closed

    def write(self, line: bytes) -> None:
        if self._closed:
            raise BrokenPipeError

    def flush(self) -> None: ...


class Process:
    """A process of a helper, which answers nothing."""

    def __init__(self, ended: int | None = None) -> None:
        self.pid, self.returncode, self.stdin = 7, ended or -9, Pipe(closed=ended is not None)
        self.ended, self.reaped = ended, False

    def poll(self) -> int | None:
        return self.ended

    def kill(self) -> None:
        self.ended = -9

    def communicate(self) -> None:
        self.reaped = True


def helper_with(*idle: Process) -> Helper:
    helper = Helper("json")
    for process in idle:
        each: Any = process
        helper._idle.put(each)
        helper._alive.add(each)
    return helper


def test_a_process_that_ended_while_it_was_idle_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = Process(ended=-9)
    started: Any = Process()
    helper = helper_with(dead)
    monkeypatch.setattr(helper, "_start", lambda: started)
    assert helper._take() is started
    assert dead.reaped
    assert not helper._alive


def test_a_process_that_the_kernel_has_just_killed_is_the_fault_of_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = Process(ended=-9)
    helper = helper_with()
    monkeypatch.setattr(helper, "_take", lambda: killed)
    with pytest.raises(TooMuch, match="no result within 2 s"):
        helper._ask("twice", (1,), 2.0)
    assert killed.reaped
    assert helper._idle.empty()


@pytest.mark.parametrize(
    ("told", "error", "why"),
    [
        ("7 (a) b) S 1\n", TooMuch, "it waits for something that does not come"),
        ("7 (a) b) R 1\n", Starved, "did not get 2 s of processor time"),
        (None, Starved, "did not get 2 s of processor time"),  # it ended while it was looked at
    ],
)
def test_who_is_to_blame_for_a_missing_answer_is_what_the_process_waits_for(
    told: str | None, error: type[Exception], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    if told is not None:
        stat.write_text(told)
    silent = Process()
    monkeypatch.setattr(helpers, "Path", lambda path: SimpleNamespace(glob=lambda pattern: [stat]))
    monkeypatch.setattr(helpers, "_said", lambda process, timeout_s: False)
    with pytest.raises(error, match=why):
        helper_with(silent)._ask("twice", (1,), 2.0)
    assert silent.reaped
