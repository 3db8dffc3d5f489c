"""Agent `guest`: the environment of another framework runs its episode with the policy, in its own process."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from agentrl.proxy.recorder import ChatReply
from agentrl.proxy.web import Closing
from agentrl.rollouts.programs.agent import ProgramAgent
from agentrl.rollouts.programs.ended import Ended, ProgramFailed
from agentrl.rollouts.programs.host import run_on_host
from agentrl.rollouts.programs.recorder import EpisodeRecorder
from agentrl.rollouts.programs.server import Door
from agentrl.rollouts.programs.warm import CannotFork, Warm, without_places
from agentrl.rollouts.session import Session
from agentrl.types.errors import InfraError, TaskError, told
from agentrl.types.task import Task

_log = logging.getLogger(__name__)

AGAIN = 75
"""Exit code of a guest after a failure of an external service: EX_TEMPFAIL of sysexits.h."""


@cache
def _once(message: str) -> None:
    _log.warning(message)


class GuestAway(InfraError):
    """A dependency of a guest is unavailable: its server, its service."""


_OF_JUDGES = ("OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_")
"""Beginnings of the variables that clients of APIs read."""


class GuestRecorder(EpisodeRecorder):
    """Records the rewards so far, which a guest sends with each request: they count if a limit ends the episode."""

    async def reply(self, body: dict[str, Any], *, n: int = 1, retried: bool = False) -> list[ChatReply]:
        """Answers a request within the episode's limits."""
        so_far = body.pop("agentrl_rewards", None)
        if so_far is not None and self.closing is None:
            self.session.info["guest"] = Closing.of({"rewards": so_far}).rewards
        return await super().reply(body, n=n, retried=retried)


class GuestAgent(ProgramAgent):
    """Starts the program of the task source `guest`, and takes its rewards (docs/adapters.md).

    Args:
        env: environment variables of the program.
        warm: modules that are imported once a worker, as the framework is.
    """

    def __init__(self, env: dict[str, str] | None = None, warm: list[str] | None = None) -> None:
        super().__init__([], env, closing_rewards=True, warm=warm)

    def _recorder(self, session: Session) -> EpisodeRecorder:
        return GuestRecorder(session, closing_rewards=True)

    async def _start(self, session: Session, door: Door) -> Ended:
        guest = session.task.data.get("guest")
        if not isinstance(guest, dict):
            remedy = "tasks: {source: guest, args: {kind: ...}}"
            raise TaskError("it is no task of a guest", place=f"task {session.task.id!r}", remedy=remedy)
        self.command = [*guest["command"], "play", guest["kind"], guest["spec"], str(guest["index"])]
        self._framework = f"of_{guest['kind']}"
        return await super()._start(session, door)

    async def _on_host(self, command: list[str], env: dict[str, str], stdin: bytes) -> Ended:
        """Starts it warm, unless its framework alone cannot be forked."""
        python, script, *_ = self.command
        warm = Warm((python,), script, (self._framework, *self.warm), without_places(self.env))
        try:
            return await run_on_host(command, env, stdin, self.files, warm)
        except CannotFork as error:
            if self.warm:
                raise
            _once(f"each episode imports its framework: {error.message}")
            return await run_on_host(command, env, stdin, self.files)

    def _environment(self, task: Task, door: Door) -> dict[str, str]:
        """Returns the policy's variables under separate names: a judge behind an API must not reach the policy."""
        known = super()._environment(task, door)
        own = {name: value for name, value in known.items() if not name.startswith(_OF_JUDGES)}
        return own | {"AGENTRL_BASE_URL": known["OPENAI_BASE_URL"], "AGENTRL_API_KEY": known["OPENAI_API_KEY"]}

    def _close(self, session: Session, recorder: EpisodeRecorder, ended: Ended) -> None:
        if ended.code and recorder.closing is None:
            said = told(ended.stderr) or f"the guest ended with exit code {ended.code}"
            raise (GuestAway if ended.code == AGAIN else ProgramFailed)(said, place=f"task {session.task.id}")
        super()._close(session, recorder, ended)

    def _rewarded(self, session: Session, rewards: dict[str, float]) -> None:
        """Stores the rewards for the whole episode: the reward function `guest` makes them its outcome."""
        session.info["guest"] = dict(rewards)
