"""Agent that runs a program: `agent: {program: [python, ./agent.py]}`."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from agentrl.rollouts.agent import Agent
from agentrl.rollouts.programs.ended import Ended, ProgramFailed, ProgramKilled
from agentrl.rollouts.programs.host import run_on_host
from agentrl.rollouts.programs.inside import relayed, run_inside
from agentrl.rollouts.programs.recorder import EpisodeRecorder
from agentrl.rollouts.programs.server import Door, server
from agentrl.rollouts.programs.warm import Warm, check_modules
from agentrl.rollouts.session import Session
from agentrl.types.errors import RecipeError
from agentrl.types.paths import check_program
from agentrl.types.task import Message, Task
from agentrl.types.task_fields import fill, of_task

_SHOWN = 2000  # characters of a program's last words in errors


class ProgramAgent(Agent):
    """Program that is started for each episode and requests replies over an API of OpenAI, Anthropic or Google.

    It finds the API by `OPENAI_BASE_URL`, `ANTHROPIC_BASE_URL` or `GOOGLE_GEMINI_BASE_URL`, and by `OPENAI_API_KEY`,
    `ANTHROPIC_API_KEY` or `GEMINI_API_KEY`. It gets the task's instruction in place of `{instruction}` in its command,
    else on stdin. Its exit ends the episode. Its answer is that of a closing call (`POST $AGENTRL_URL/end`), else the
    last line of stdout that is not blank.

    Args:
        command: program and arguments. `{instruction}`, `{id}` (of the task), `{data.KEY}`, `{url}`, `{key}` and
            `{model}` are filled in.
        env: environment variables, filled in likewise.
        where: on this machine, outside the sandbox; or in the episode's sandbox.
        files: files and folders to copy to the program's folder. In a sandbox, also those of the command.
        nonzero: meaning of an exit code other than 0: an error of the program, or a regular end.
        closing_rewards: whether rewards of a closing call count. A shell or an interpreter that the policy uses on the
            program's side of the sandbox can forge them.
        warm: modules that are imported once a worker: the program, in Python, starts as a fork of a process that has
            them. Needs `where: host`.
    """

    def __init__(
        self,
        command: list[str],
        env: dict[str, str] | None = None,
        where: Literal["host", "sandbox"] = "host",
        files: list[str] | None = None,
        nonzero: Literal["error", "end"] = "error",
        closing_rewards: bool = False,
        warm: list[str] | None = None,
    ) -> None:
        if command and where == "host" and "{" not in command[0]:
            check_program(command[0], "agent.program")
        self.command, self.env, self.where, self.nonzero = command, dict(env or {}), where, nonzero
        self.closing_rewards = closing_rewards
        self.files = [Path(file) for file in files or ()]
        self.warm = list(warm or ())
        if self.warm and where == "sandbox":
            raise RecipeError(
                "a program in the sandbox cannot start warm: the modules would be imported on this machine",
                place="agent.warm",
                remedy="remove agent.warm, or agent.where: sandbox",
            )
        if self.warm and command:
            check_modules(Warm.of(command, self.warm, self.env))

    def opening(self, session: Session, system: str | None) -> list[Message]:
        """Returns the task's messages, until the program sends its own."""
        return session.task.instruction

    async def run(self, session: Session) -> None:
        """Starts the program, and records until it ends or reaches a limit."""
        recorder = self._recorder(session)
        async with server().admit(recorder) as door:
            ended = await self._until_end(session, recorder, door)
        if recorder.limit is not None:
            raise recorder.limit
        if recorder.failed is not None:
            raise recorder.failed
        if ended is not None:
            self._close(session, recorder, ended)

    def _recorder(self, session: Session) -> EpisodeRecorder:
        return EpisodeRecorder(session, closing_rewards=self.closing_rewards)

    async def _until_end(self, session: Session, recorder: EpisodeRecorder, door: Door) -> Ended | None:
        """Waits for the end of the program and returns it; None if a limit was reached before."""
        program = asyncio.create_task(self._start(session, door))
        limit = asyncio.create_task(recorder.limited.wait())
        try:
            await asyncio.wait([program, limit], return_when=asyncio.FIRST_COMPLETED)
            return None if recorder.limit is not None else await program
        except ProgramFailed as error:
            raise ProgramFailed(error.message, place=f"task {session.task.id}", remedy=error.remedy) from None
        finally:
            for each in (program, limit):
                each.cancel()
            await asyncio.gather(program, limit, return_exceptions=True)

    async def _start(self, session: Session, door: Door) -> Ended:
        if self.where == "host":
            return await self._on_host(*self._filled_in(session.task, door, self.command))
        sandbox = session.sandbox
        assert sandbox is not None  # `agent.where` asked for one
        for file in self.files:
            await sandbox.put(file, file.name if file.is_dir() else ".")
        inside = {str(file): f"./{file.name}" for file in self.files}
        async with relayed(sandbox, door.address) as relay:
            command = [inside.get(part, part) for part in self.command]
            there = replace(door, address=relay.address)
            ended = await run_inside(sandbox, *self._filled_in(session.task, there, command))
            return replace(ended, cut_off=relay.ended)

    async def _on_host(self, command: list[str], env: dict[str, str], stdin: bytes) -> Ended:
        warm = Warm.of(self.command, self.warm, self.env) if self.warm else None
        return await run_on_host(command, env, stdin, self.files, warm)

    def _filled_in(self, task: Task, door: Door, command: list[str]) -> tuple[list[str], dict[str, str], bytes]:
        """Returns command, environment and stdin."""
        known = of_task(task) | {"url": door.url, "key": door.key, "model": door.model}
        env = self._environment(task, door) | {name: fill(value, known) for name, value in self.env.items()}
        told = any("{instruction}" in part for part in (*command, *self.env.values()))
        return [fill(part, known) for part in command], env, b"" if told else known["instruction"].encode()

    def _environment(self, task: Task, door: Door) -> dict[str, str]:
        """Returns the variables that point the program to the policy."""
        return {
            "OPENAI_BASE_URL": f"{door.url}/v1",
            "OPENAI_API_BASE": f"{door.url}/v1",
            "OPENAI_API_KEY": door.key,
            "ANTHROPIC_BASE_URL": door.url,
            "ANTHROPIC_API_KEY": door.key,
            "GOOGLE_GEMINI_BASE_URL": door.url,
            "GEMINI_API_KEY": door.key,
            "GOOGLE_GENAI_USE_VERTEXAI": "false",  # else the address above does not hold
            "AGENTRL_URL": door.url,
            "AGENTRL_MODEL": door.model,
            "AGENTRL_TASK": task.id,
            **{name: _direct(os.environ.get(name, "")) for name in ("NO_PROXY", "no_proxy")},
        }

    def _close(self, session: Session, recorder: EpisodeRecorder, ended: Ended) -> None:
        closing, spoke = recorder.closing, recorder.spoke
        if ended.code and closing is None and self.nonzero == "error":
            if ended.killed and spoke:
                raise ProgramKilled(f"the program was killed: {ended.killed}", place=f"task {session.task.id}")
            if self.where == "sandbox" and spoke:  # the policy can break there what the program needs
                raise ProgramKilled(
                    f"the program ended with exit code {ended.code}{_last_words(ended)}",
                    place=f"task {session.task.id}",
                    remedy="agent.nonzero: end takes that for an end like any other",
                )
            raise _failed(
                session, f"the program ended with exit code {ended.code}", ended,
                "agent.nonzero: end takes that for an end like any other",
            )  # fmt: skip
        if not session.turns and spoke and self.where == "sandbox":
            raise ProgramKilled(
                "the program ended, and had received none of the model's replies", place=f"task {session.task.id}"
            )
        if not session.turns:
            strays = f"; it asked for {', '.join(recorder.strays[:3])}" if recorder.strays else ""
            raise _failed(
                session, f"the program ended without a reply of the model{strays}", ended,
                "it must use OPENAI_BASE_URL, ANTHROPIC_BASE_URL or GOOGLE_GEMINI_BASE_URL of its environment",
            )  # fmt: skip
        if closing is not None and closing.rewards:
            self._rewarded(session, closing.rewards)
        said = None if closing is None else closing.answer
        session.finish("answer", last_line(ended.stdout) if said is None else said)

    def _rewarded(self, session: Session, rewards: dict[str, float]) -> None:
        session.reward(**rewards)


def last_line(stdout: bytes) -> str | None:
    """Returns the last line that is not blank; None if none."""
    lines = [line for line in stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else None


def _direct(hosts: str) -> str:
    """Returns a list of hosts that are reached without a proxy, this machine included."""
    return ",".join(filter(None, [hosts, "127.0.0.1", "localhost"]))


def _failed(session: Session, what: str, ended: Ended, remedy: str) -> ProgramFailed:
    return ProgramFailed(f"{what}{_last_words(ended)}", place=f"task {session.task.id}", remedy=remedy)


def _last_words(ended: Ended) -> str:
    """Returns the end of what a program wrote, behind a colon; "" if nothing."""
    last = (ended.stderr or ended.stdout).decode("utf-8", "replace").strip()[-_SHOWN:]
    return f": {last}" if last else ""
