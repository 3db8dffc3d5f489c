"""Live forks: a second session that continues from a turn of a running episode.

A fork is a separate attempt, with its own tools and sandbox, whose turns so far are replayed from the record. It is an
episode of the same group and names its parent. An attempt and its forks are stored together, or not at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace

from agentrl.rollouts.attempt import Attempt
from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.conversation.resumption import Prefix, keeps_files_alone
from agentrl.rollouts.faults.failures import Verdict, episode_of, verdict
from agentrl.rollouts.session import Session
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.types.episode import MAIN, Episode, Parent
from agentrl.types.errors import AgentRLError
from agentrl.types.seeds import derive_seed

FORKED = ("train", "rollout")
"""Splits whose episodes may be forked: not evaluations, which compare episodes, nor demonstrations."""


class ForkRefused(AgentRLError):
    """An episode cannot be forked, or not from this turn."""


class ForkFailed(AgentRLError):
    """A fork could not be opened, replayed or scored, although its parent could."""


class ForkingAttempt(Attempt):
    """Attempt that its agent may fork, with its forks.

    Args:
        forked: the attempt that it is a fork of; None: the root of the tree.

    Attributes:
        ended: records of the forks of its tree, in the order in which they ended.
    """

    def __init__(
        self, context: RolloutContext, spec: EpisodeSpec, number: int, forked: ForkingAttempt | None = None
    ) -> None:
        super().__init__(context, spec, number)
        self.ended: list[Episode] = []
        self._forked, self._forks = forked, list[ForkingAttempt]()
        self._begun = 0

    @property
    def line(self) -> list[ForkingAttempt]:
        """Ancestors of the attempt, and itself."""
        return [*(self._forked.line if self._forked is not None else ()), self]

    @property
    def trunk(self) -> ForkingAttempt:
        """Root of its tree."""
        return self if self._forked is None else self._forked.trunk

    @property
    def forkable(self) -> ForkingAttempt:
        return self

    @property
    def forks_left(self) -> int:
        """Number of further forks allowed in its tree."""
        spec, begun = self.trunk.spec, self.trunk._begun
        return max(0, self.trunk.most_forks - begun) if spec.split in FORKED and spec.resumes is None else 0

    @asynccontextmanager
    async def fork(self, turn: int | None) -> AsyncIterator[Session]:
        """Opens a session that continues from a turn of this one, see `Session.fork`."""
        spec = await self._spec_of_fork(turn)
        fork = ForkingAttempt(self.context, spec, self.number, self)
        self._forks.append(fork)
        judged = Verdict("done", retry=False)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close, fork)
            for attempt in self.line:
                stack.enter_context(attempt.clock.stopped())
            with fork._has_no_end("opening"):
                if self.sandbox is not None and spec.resumes is not None and spec.resumes.files:
                    (fork.sandbox,) = await self.sandbox.fork(1)
                session, _ = await fork.open()
            try:
                async with fork.driven(session):
                    with fork._has_no_end("playing back"):
                        await fork._play_back(session)
                    yield session
            except BaseException as error:
                if episode_of(error) != session.id or verdict(error).status != "truncated":
                    raise
                judged = fork.judge(error)
            with fork._has_no_end("scoring"):
                await fork.score()
        episode, _ = fork.record(judged)
        if episode.error is not None:
            raise ForkFailed(episode.error.message, place=fork._place)
        self.trunk.ended.append(episode)

    def release(self) -> None:
        """Releases it and its forks, whose sessions could be forked until now."""
        for fork in self._forks:
            fork.release()
        self._forks.clear()
        super().release()

    async def _play_back(self, session: Session) -> None:
        self.enter("agent")
        await session.source.play_back(session)

    async def _close(self, fork: ForkingAttempt) -> None:
        await fork.close()
        self.close_errors += fork.close_errors
        self.context.on_stage(fork.spec.id, None)

    async def _spec_of_fork(self, turn: int | None) -> EpisodeSpec:
        """Returns the spec of a fork.

        Raises:
            ForkRefused: forking is not possible.
        """
        if (session := self.session) is None:
            raise ForkRefused("the episode has ended", place=self._place, remedy="fork while its agent runs")
        turns = session.state.recording.drafts
        at = len(turns) if turn is None else turn
        if (why := self._refusal(session, turn, at)) is not None:
            raise ForkRefused(why[0], place=self._place, remedy=why[1])
        self.trunk._begun += 1
        id = f"{self.trunk.spec.id}.{self.trunk._begun}"
        now = at == len(turns) and not self._session_ended  # Closed tools and sandboxes cannot be saved.
        saved = await session.state.saved() if now else None
        older = self.spec.resumes.parent if self.spec.resumes is not None else Parent(run="", episode="", turn=0)
        seeds = [*older.seeds, (older.turn, derive_seed(self.context.seed, "episode", self.spec.id))]
        origin = Parent(run="", episode=self.spec.id, turn=at, seeds=[each for each in seeds if each[0] < max(at, 1)])
        prefix = Prefix(origin, self.unscored(), seeds[0][1], saved, now and self._takes_snapshots(session))
        return replace(self.trunk.spec, id=id, resumes=prefix)

    def _takes_snapshots(self, session: Session) -> bool:
        """Returns True if the current sandbox can be copied, and is all that a fork needs."""
        spec = None if self.sandbox is None else self.context.sandbox_of(self.task)
        return spec is not None and spec.snapshots and keeps_files_alone(session.tools)

    def _refusal(self, session: Session, turn: int | None, at: int) -> tuple[str, str] | None:
        """Returns the reason that forbids a fork, and the remedy."""
        turns = session.state.recording.drafts
        if not self.forks_left:
            return self._none_left()
        if not 0 <= at <= len(turns):
            return f"there is no turn {turn}: it has {len(turns)}", "give one of its turns, or None for the next one"
        if any(each.context != MAIN for each in turns[: at + 1]):
            return "another context had a turn before the fork", "fork before the context begins"
        if at == len(turns) and session.under_way:
            return f"{session.under_way} is under way", "fork after it, or from an earlier turn"
        if at == len(turns) and session.rewritten:
            return "the context was just replaced", "fork after the next reply, or from an earlier turn"
        unable = next((tool for tool in session.tools if not tool.forkable), None)
        if unable is not None:
            return f"the tool {type(unable).__name__} cannot be forked (forkable = False)", "leave the tool out"
        return None

    def _none_left(self) -> tuple[str, str]:
        if (most := self.trunk.most_forks) > self.trunk._begun:
            return "an evaluation, a demonstration or a resumed episode is not forked", "look at session.forks_left"
        return f"the agent may fork an episode {most} times", "set `forks` of the agent to the most that it does"

    @contextmanager
    def _has_no_end(self, what: str) -> Iterator[None]:
        """Converts exceptions that would end an episode early to errors: they would end the forked episode.

        Raises:
            ForkFailed: in place of the exception.
        """
        try:
            yield
        except BaseException as error:
            if verdict(error).status != "truncated":
                raise
            raise ForkFailed(f"{what} a fork: {error}", place=self._place) from error

    @property
    def _place(self) -> str:
        return f"task {self.task.id!r}, episode {self.spec.id}"
