"""Symbolic equality of mathematical answers, compared in a helper process.

A pair of expressions can keep the algebra system busy for ever, and its own time limit needs SIGALRM, which only the
main thread of a process has. So one helper process compares, and is killed when it takes too long.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import select
import subprocess
import sys
import threading
from contextlib import suppress

from agentrl.episode.record import Episode
from agentrl.errors import AgentRLError, TaskError, needs
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.verifiers import gold
from agentrl.task import Task

_START_S = 120.0  # importing the algebra system on a busy machine


@reward(source="math-verify (huggingface/Math-Verify)")
async def maths(
    task: Task, episode: Episode, *, key: str = "answer", digits: int = 6, timeout_s: float = 5.0
) -> float | Scored:
    r"""1 if the answer equals a reference symbolically (`\frac12`, `0.5`, sets, intervals, equations), else 0.

    None if no comparison said yes and one did not end in time.

    Args:
        key: where in `task.data` the gold answer is, LaTeX or plain.
        digits: numbers are compared after rounding to so many.
        timeout_s: for one reference.

    Raises:
        MissingExtra: math-verify is not installed.
        TaskError: no gold answer, or none that can be read as mathematics.
    """
    with needs("maths"):
        import math_verify  # noqa: F401
    references = gold(task, key)
    if not (episode.answer or "").strip():
        return 0.0
    verdicts = []
    for reference in references:
        verdicts.append(await asyncio.to_thread(_HELPER.compare, reference, episode.answer or "", digits, timeout_s))
    if all(verdict == "no gold" for verdict in verdicts):
        raise TaskError(f"{key!r} cannot be read as mathematics: {references[0]!r}", place=f"task {task.id}")
    if "equal" in verdicts:
        return 1.0
    return Scored(None, f"no verdict within {timeout_s:g} s") if "timeout" in verdicts else 0.0


class _Helper:
    """The helper process: started when first asked, replaced after a timeout. One comparison at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def compare(self, reference: str, answer: str, digits: int, timeout_s: float) -> str:
        """`equal`, `different`, `no gold` or `timeout`."""
        with self._lock:
            process = self._process or self._start()
            question = json.dumps([reference, answer, digits]).encode() + b"\n"
            assert process.stdin is not None
            process.stdin.write(question)
            process.stdin.flush()
            verdict = _line(process, timeout_s)
            if verdict is None:
                self.stop()
            return verdict or "timeout"

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "agentrl.rewards.maths"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if _line(self._process, _START_S) != "ready":
            self.stop()
            raise AgentRLError("the helper process that compares mathematics did not start", remedy=" ".join(command))
        return self._process

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _line(process: subprocess.Popen[bytes], timeout_s: float) -> str | None:
    """The next line that it prints; None if that takes too long or it died."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], timeout_s)
    return process.stdout.readline().decode().strip() or None if ready else None


_HELPER = _Helper()
atexit.register(_HELPER.stop)


def _serve() -> None:
    """The helper's side: a question a line, a verdict a line."""
    from math_verify import parse, verify

    answers = sys.stdout
    sys.stdout = sys.stderr  # what the algebra system prints is no verdict
    print("ready", file=answers, flush=True)
    for question in sys.stdin:
        reference, answer, digits = json.loads(question)
        wanted = said = None
        # No time limit of its own (None): a limit would swallow the difference between unequal and undecided.
        with suppress(Exception):
            wanted = parse(_delimited(reference), parsing_timeout=None) or parse(reference, parsing_timeout=None)
        with suppress(Exception):  # what an answer makes the parser raise is the answer's fault
            said = parse(answer, parsing_timeout=None) or parse(_delimited(answer), parsing_timeout=None)
        equal = False
        with suppress(Exception):
            equal = bool(wanted and said) and verify(wanted, said, float_rounding=digits, timeout_seconds=None)
        print("no gold" if not wanted else "equal" if equal else "different", file=answers, flush=True)


def _delimited(text: str) -> str:
    r"""Bare LaTeX (`\frac{1}{2}`) is only found between delimiters."""
    return text if "$" in text or "\\boxed" in text or "\\(" in text else f"${text}$"


if __name__ == "__main__":
    _serve()
