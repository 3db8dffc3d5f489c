"""Runs a program on this machine, in a separate folder."""

from __future__ import annotations

import asyncio
import os
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from agentrl.rollouts.programs.ended import KEPT, Ended, ProgramFailed, Tail
from agentrl.rollouts.programs.warm import Forked, Warm, fork_server
from agentrl.types.lifeline import announced, kill_group, not_orphaned
from agentrl.types.stdlib import piped

CLOSE_S = 2.0
"""Seconds for which the streams may stay open after the end of the program and its process group."""

POLL_S = 0.02
"""Seconds between two polls for the program's end."""


class Started:
    """Program with an interpreter of its own, with pipes to its streams."""

    def __init__(self, process: Process) -> None:
        self._process, self.pid = process, process.pid
        self.stdin, self.stdout, self.stderr = piped(process.stdin), piped(process.stdout), piped(process.stderr)

    async def exit_code(self) -> int:
        """Waits for the exit code. `process.wait` would also wait for other processes that hold its streams."""
        while self._process.returncode is None:  # noqa: ASYNC110  only the process knows
            await asyncio.sleep(POLL_S)
        return self._process.returncode

    def close(self) -> None:
        """Closes the pipes, also those that an escaped child keeps open."""
        self._process._transport.close()  # type: ignore[attr-defined]


async def run_on_host(
    command: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes,
    files: Sequence[Path] = (),
    warm: Warm | None = None,
) -> Ended:
    """Runs a program to its end in a fresh folder. On cancellation, it and its process group are killed.

    Args:
        files: files and folders to copy into the folder.
        warm: starts it as a fork of a server.

    Raises:
        CannotFork: `warm` does not fit.
        ProgramFailed: it cannot be started.
        ProgramKilled: its fork server has ended.
    """
    with TemporaryDirectory(prefix="agentrl-program-", ignore_cleanup_errors=True) as folder:
        await asyncio.to_thread(_copy, files, Path(folder))
        program: Started | Forked
        if warm is None:
            program = await _start(command, {**os.environ, **env}, folder)
        else:
            program = await fork_server(warm).run(warm.arguments(command), {**os.environ, **env}, folder)
        out, err = Tail(), Tail()
        jobs = [
            asyncio.create_task(job)
            for job in (_read(program.stdout, out), _read(program.stderr, err), _feed(program.stdin, stdin))
        ]
        try:
            with not_orphaned(program.pid):
                code = await program.exit_code()
                kill_group(program.pid)
            await asyncio.wait(jobs, timeout=CLOSE_S)
        finally:
            kill_group(program.pid)
            for job in jobs:
                job.cancel()
            await asyncio.gather(program.exit_code(), *jobs, return_exceptions=True)
            program.close()
        return Ended(code, out.kept, err.kept)


async def _start(command: Sequence[str], env: Mapping[str, str], folder: str) -> Started:
    try:
        with announced() as announce:
            return Started(
                await asyncio.create_subprocess_exec(
                    *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=folder, env=env, start_new_session=True,
                    preexec_fn=announce,
                )
            )  # fmt: skip
    except OSError as error:
        raise ProgramFailed(f"the program cannot be started: {error}", place="agent.program") from None


def _copy(files: Sequence[Path], folder: Path) -> None:
    for file in files:
        (shutil.copytree if file.is_dir() else shutil.copy2)(file, folder / file.name)


async def _read(stream: asyncio.StreamReader, tail: Tail) -> None:
    while data := await stream.read(KEPT):
        tail.add(data)


async def _feed(stdin: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(ConnectionError):
        stdin.write(data)
        await stdin.drain()
    stdin.close()
