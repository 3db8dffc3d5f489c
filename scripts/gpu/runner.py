"""Plays phases one after the other: each in a process of its own, with a time-out, and all that it says on disk.

`results.json` is rewritten after each phase; `log.txt` has what they print, as they print it. Nothing here needs a
package that is not in Python's library.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.gpu.phase import figures_in

ROOT = Path(__file__).resolve().parents[2]
TOLD = 12
"""Lines of a failed phase's output that are shown at once."""


@dataclass(frozen=True)
class Step:
    """A phase to be played.

    Attributes:
        seconds: after which it is killed.
        command: arguments of Python.
    """

    name: str
    seconds: float
    command: Sequence[str]


@dataclass
class Outcome:
    """The outcome of a phase.

    Attributes:
        status: "not run", "running", "passed", "failed", "out of time", or "stopped" (by a signal).
        figures: by name; those that it told before it failed, too.
        said: the end of its output, if it did not pass.
    """

    budget_s: float
    status: str = "not run"
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)


def play(
    steps: Sequence[Step],
    out: Path,
    environment: Mapping[str, str],
    about: Mapping[str, Any],
    say: Callable[[str], None] = print,
    wait: Callable[[subprocess.Popen[bytes], float], int] = subprocess.Popen.wait,
) -> dict[str, Outcome]:
    """Plays the phases in order; one that fails or hangs does not stop the next.

    Args:
        out: folder for `results.json` and `log.txt`.
        environment: of the processes.
        about: what stands first in `results.json`.
        say: takes a line for people after each phase.
        wait: waits so many seconds for a process to end, and returns its exit code.
    """
    out.mkdir(parents=True, exist_ok=True)
    outcomes = {step.name: Outcome(step.seconds) for step in steps}
    log = out / "log.txt"
    log.write_bytes(b"")
    for step in steps:
        outcome = outcomes[step.name]
        outcome.status = "running"
        _write(out, about, outcomes)
        try:
            _play(step, outcome, log, environment, wait)
        finally:
            _write(out, about, outcomes)
        say(f"{step.name:<11} {outcome.status:<12} {outcome.seconds:5.1f} of {step.seconds:g} s")
        for line in outcome.said:
            say(f"    {line}")
    return outcomes


def _play(
    step: Step,
    outcome: Outcome,
    log: Path,
    environment: Mapping[str, str],
    wait: Callable[[subprocess.Popen[bytes], float], int],
) -> None:
    began = time.monotonic()
    with log.open("ab") as file:
        file.write(f"\n===== {step.name}: python {' '.join(step.command)}\n".encode())
        file.flush()
        start = file.tell()
        child = subprocess.Popen(
            [sys.executable, "-u", *step.command],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            cwd=ROOT, env=dict(environment), start_new_session=True,
        )  # fmt: skip
        try:
            code = wait(child, step.seconds)
            outcome.status = "failed" if code else "passed"
        except subprocess.TimeoutExpired:
            outcome.status = "out of time"
        except BaseException:  # this process is told to end
            outcome.status = "stopped"
            raise
        finally:
            # Also what a phase that ended has left behind: it would hold the GPU's memory.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            outcome.seconds = round(time.monotonic() - began, 1)
            _read(outcome, log, start)


def _read(outcome: Outcome, log: Path, start: int) -> None:
    """Takes what a phase told from its part of the log."""
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode("utf-8", "replace")
    outcome.figures = figures_in(text)
    if outcome.status != "passed":
        lines = [line for line in text.splitlines() if line.strip()]
        outcome.said = [line[:300] for line in lines[-TOLD:]]


def _write(out: Path, about: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> None:
    """A reader, or a kill, finds the old file or the new one."""
    new = out / "results.json.new"
    phases = {name: asdict(outcome) for name, outcome in outcomes.items()}
    new.write_text(json.dumps({**about, "phases": phases}, indent=1) + "\n")
    new.replace(out / "results.json")
