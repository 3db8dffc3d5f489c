"""The process that is attacked, seen from outside: it may neither end nor hang."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.attacks.cases import Broken, Case
from tests.attacks.traces import survivors_of

BATCH_S = 900.0
"""Time for a batch. Every deadline inside is shorter: a driver that takes more hangs."""
_ROOT = Path(__file__).parents[2]
_SAID = 2000  # characters of the end of what it said
WORKER = (sys.executable, "-m", "tests.attacks.worker")


class Driver:
    """Plays batches in a process of its own; in another one, if that died.

    Args:
        folder: for its runs and its temporary files.
        command: of the process; the descriptor for its answers is added.
    """

    def __init__(self, folder: Path, command: Sequence[str] = WORKER, batch_s: float = BATCH_S) -> None:
        self._command, self._batch_s = command, batch_s
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        self._environment, self._log = {**os.environ, "PYTHONPATH": path}, folder / "log"
        for name in ("TMPDIR", "AGENTRL_ATTACKS"):
            made = folder / name.lower()
            made.mkdir(parents=True)
            made.chmod(0o755)  # the users of sandboxes enter it
            self._environment[name] = str(made)
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1

    def play(self, cases: Sequence[Case]) -> list[Broken]:
        """The promises that a batch broke. Its cases are of one family and one place."""
        ids = tuple(case.id for case in cases)
        process = self._process or self._start()
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has died meanwhile
            process.stdin.write(json.dumps({"seed": cases[0].seed, "cases": ids}).encode() + b"\n")
            process.stdin.flush()
        line = self._line()
        if line is not None and line.endswith(b"\n"):
            return [Broken(tuple(whose), what) for whose, what in json.loads(line)]
        code = self.close(kill=line is None)
        what = f"the driver hangs: no end within {self._batch_s:g} s" if line is None else _told(code)
        last = self._log.read_text(errors="replace")[-_SAID:]
        return [
            Broken(ids, f"{what}\n{last}"),
            *(Broken(ids, f"outlives the driver: {each}") for each in survivors_of(process.pid)),
        ]

    def _start(self) -> subprocess.Popen[bytes]:
        self._answers, theirs = os.pipe()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, str(theirs)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[theirs], env=self._environment,
            )  # fmt: skip
        os.close(theirs)
        return self._process

    def _line(self) -> bytes | None:
        """Its answer: without an end if it died before, None if it takes too long."""
        line, until = b"", time.monotonic() + self._batch_s
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                return line
            line += piece
        return line

    def close(self, *, kill: bool = False) -> int:
        """Lets it end, which it does once it is told no more; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin is not None
        if kill:
            process.kill()
        with suppress(BrokenPipeError):
            process.stdin.close()
        os.close(self._answers)
        return process.wait()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close(kill=True)


def _told(code: int) -> str:
    return f"the driver was killed by {signal.Signals(-code).name}" if code < 0 else f"the driver exited with {code}"
