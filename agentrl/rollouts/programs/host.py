"""Runs a program on this machine, in a separate folder."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from agentrl.rollouts.programs.ended import KEPT, Ended, ProgramFailed, Tail
from agentrl.types.lifeline import not_orphaned

CLOSE_S = 2.0
"""Seconds for which the streams may stay open after the end of the program and its process group."""

POLL_S = 0.02
"""Seconds between two polls for the program's end."""


async def run_on_host(
    command: Sequence[str], env: Mapping[str, str], stdin: bytes, files: Sequence[Path] = ()
) -> Ended:
    """Runs a program to its end in a fresh folder. On cancellation, it and its process group are killed.

    Args:
        files: files and folders to copy into the folder.

    Raises:
        ProgramFailed: it cannot be started.
    """
    with TemporaryDirectory(prefix="agentrl-program-", ignore_cleanup_errors=True) as folder:
        await asyncio.to_thread(_copy, files, Path(folder))
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=folder, env={**os.environ, **env},
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ProgramFailed(f"the program cannot be started: {error}", place="agent.program") from None
        out, err = Tail(), Tail()
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        jobs = [
            asyncio.create_task(job)
            for job in (_read(process.stdout, out), _read(process.stderr, err), _feed(process.stdin, stdin))
        ]
        try:
            with not_orphaned(process.pid):
                code = await _exit_code(process)
                _kill(process.pid)
            await asyncio.wait(jobs, timeout=CLOSE_S)
        finally:
            _kill(process.pid)
            for job in jobs:
                job.cancel()
            await asyncio.gather(_exit_code(process), *jobs, return_exceptions=True)
            process._transport.close()  # type: ignore[attr-defined]  # else an escaped child keeps the pipes open
        return Ended(code, out.kept, err.kept)


async def _exit_code(process: Process) -> int:
    """Waits for the exit code. `process.wait` would also wait for other processes that hold its streams."""
    while process.returncode is None:  # noqa: ASYNC110  only the process knows
        await asyncio.sleep(POLL_S)
    return process.returncode


def _copy(files: Sequence[Path], folder: Path) -> None:
    for file in files:
        (shutil.copytree if file.is_dir() else shutil.copy2)(file, folder / file.name)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


async def _read(stream: asyncio.StreamReader, tail: Tail) -> None:
    while data := await stream.read(KEPT):
        tail.add(data)


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):
        stdin.write(data)
        await stdin.drain()
    stdin.close()
