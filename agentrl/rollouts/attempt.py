"""One attempt at an episode: sandbox, tools, agent, rewards, in that order. Every stage has a deadline (`Limits`)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec

from agentrl.rewards.components import OpenSandbox
from agentrl.rewards.score import Live, Score
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.conversation.calls import CallRunner, room_for_results
from agentrl.rollouts.conversation.conversation import SampledTurns, TurnSource
from agentrl.rollouts.conversation.playback import RepeatedCalls, RepeatedTurns
from agentrl.rollouts.conversation.policies import MainPolicy
from agentrl.rollouts.conversation.resumption import Resumption, savers
from agentrl.rollouts.conversation.state import EpisodeEnd, EpisodeState
from agentrl.rollouts.faults.failures import TookTooLong, Verdict, describe, verdict, within
from agentrl.rollouts.hindsight import HindsightScorer
from agentrl.rollouts.information_gain import AnswerScorer
from agentrl.rollouts.session import Forkable, Session
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.rollouts.states.registry import HasStateKey
from agentrl.sandbox.health import check_answers
from agentrl.store.codec import must_be_storable
from agentrl.store.index import with_images
from agentrl.tools.base import Environment, Tool
from agentrl.tools.calling import called
from agentrl.tools.responders import info_of, openings
from agentrl.tools.toolset import ToolBox
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.engine import Sampling
from agentrl.types.episode import POLICY, Episode, ErrorRecord
from agentrl.types.errors import EngineError, StoreError, asked_to_stop
from agentrl.types.parts.content import text_of
from agentrl.types.parts.intake import Images
from agentrl.types.sandbox import (
    Backend,
    CapabilityMissing,
    Sandbox,
    SandboxImageUnusable,
    SandboxSpec,
    SandboxUnavailable,
)
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message, Task


class Attempt:
    """One attempt at an episode: sandbox, tools, agent, rewards, in that order.

    Attributes:
        clock: deadline of `limits.episode_s`. It is paused while forks run.
        most_forks: maximum number of forks by its agent.
        suspected: whether the agent may have ended an earlier attempt.
    """

    def __init__(self, context: RolloutContext, spec: EpisodeSpec, number: int) -> None:
        self.context, self.spec, self.number = context, spec, number
        self.clock, self.most_forks = Deadline(context.limits.episode_s), 0
        self.suspected = False
        self.task = spec.task
        self.images: Images | None = None
        self.session: Session | None = None
        self.sandbox: Sandbox | None = None
        self.tools, self.environments = list[Tool](), list[Environment]()
        self.speakers = context.speakers
        self.info: dict[str, Any] = {}
        self.opened: list[Tool] = []
        self.stage, self.stop = "start", ""
        self.scored: Score | None = None
        self.timings: dict[str, float] = {}
        self.created_at, self.started = time.time(), time.perf_counter()
        self._since = self.started
        self._session_ended = False
        self.error: ErrorRecord | None = None
        self.close_errors: list[ErrorRecord] = []

    async def play(self) -> tuple[Episode, Verdict]:
        """Runs, scores and closes the episode; returns its record and its verdict, whatever was raised."""
        try:
            judged = await self._judged(self.run)
            if judged.status in ("done", "truncated") and (failed := await self._judged(self.score)).status != "done":
                # A reward function cannot reach a limit of the episode.
                judged = failed if failed.status != "truncated" else Verdict("user_error", retry=False)
        finally:
            await self.close()
        recorded = self.record(judged)
        self.release()
        return recorded

    async def _judged(self, part: Callable[[], Awaitable[None]]) -> Verdict:
        try:
            await part()
        except BaseException as error:
            if asked_to_stop(error):
                raise
            return self.judge(error)
        return Verdict("done", retry=False)

    async def run(self) -> None:
        """Runs the agent."""
        agent = self.context.make_agent()
        self.most_forks = agent.forks
        session, shown = await self.open(agent.tools(), agent)
        self.enter("agent")
        session.begin(agent.opening(session, self._system), shown)
        session.begin_engine()
        async with self.driven(session):
            await agent.run(session)
            session.source.check_end(session.turns)

    async def open(self, own: Sequence[Tool] = (), agent: Agent | None = None) -> tuple[Session, list[Message]]:
        """Opens sandbox and tools; returns the session, and the opening messages of the environments.

        Args:
            own: tools of the agent.
        """
        context, limits = self.context, self.context.limits
        images = Images(context.engine, limits, context.put_blob, context.get_blob)
        self.images = images
        self.task = self.spec.task.with_images(images.take)
        task = self.task.copied()  # the group's other episodes and the record share the task
        box = context.tools.box(task, own)
        self.tools, self.environments = box.instances, box.environments
        if context.backend is not None and self.sandbox is None and (spec := context.sandbox_of(task)) is not None:
            self.enter("sandbox")
            self.sandbox = await self._start(context.backend, spec, self.spec.id)
        self.enter("open")
        shown = await self._open_tools(box, task, images)
        at = self.spec.iteration if self.spec.split == "eval" else None  # training may have continued in the meantime
        self.speakers = await context.speakers.bound(self.spec.group_id, at)
        calls, source = self._calls(box, images)
        state = EpisodeState(
            self.spec.id, task, calls,
            max_turns=self.spec.max_turns or context.max_turns,
            seed=derive_seed(context.seed, "episode", self.spec.id),
            states=context.states and replace(context.states, keyed=_keyed(agent, box.instances)),
            saves=savers(box.instances),
            split=self.spec.split,
        )  # fmt: skip
        memory = self.spec.memory
        version = None if memory is None else memory.version
        speaker = MainPolicy(
            POLICY, context.engine, context.renderer, self.sampling, reserve=self._reserve, memory=version
        )
        self.session = session = Session(state, box, speaker, source, self.speakers, self.forkable)
        session.memory = memory
        state.seats = agent is None or agent.seats
        source.begin(state)
        context.conversations.states[self.spec.id] = state
        return session, shown

    def _calls(self, box: ToolBox, images: Images) -> tuple[CallRunner, TurnSource]:
        """Returns what runs the calls and what gives the turns: first a record does both, if there is one."""
        limits, put_blob = self.context.limits, self.context.put_blob
        room = room_for_results(limits, self.context.engine.max_context)
        if self.spec.resumes is None:
            return CallRunner(limits, self.sandbox, put_blob, images, room), SampledTurns()
        resumption = Resumption(self.spec.resumes, box.instances, self.sandbox, box.changes)
        calls = RepeatedCalls(limits, self.sandbox, put_blob, images, room, resumption=resumption)
        return calls, RepeatedTurns(resumption)

    async def _open_tools(self, box: ToolBox, task: Task, images: Images) -> list[Message]:
        """Opens the tools; returns the opening messages of the environments."""
        if not box.environments and all(type(tool).open is Tool.open for tool in box.instances):
            self.opened += box.instances
            return []
        async with within(self.context.limits.open_s, "opening the tools", "limits.open_s", self.sandbox):
            for tool in box.instances:
                self.opened.append(tool)
                await called(tool, tool.open, task, self.sandbox)
            return await openings(box.environments, images.take)

    @property
    def _system(self) -> str | None:
        """The system message: the recipe's, with the policy's text memory.

        An episode that resumes a stored one has the memory of its parent, which its prompt contains.
        """
        if self.spec.memory is None:
            return self.context.system
        if self.spec.resumes is None:
            return self.spec.memory.under(self.context.system)
        first = next(iter(self.spec.resumes.record.prompt), None)
        return text_of(first["content"]) if first is not None and first["role"] == "system" else None

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of the policy's replies."""
        own, planned = self.context.sampling, self.spec.temperature
        return own if planned is None else msgspec.structs.replace(own, temperature=planned)

    @property
    def forkable(self) -> Forkable | None:
        """Implementation of forks of the session; None: not supported."""
        return None

    @asynccontextmanager
    async def driven(self, session: Session) -> AsyncIterator[None]:
        """Runs the agent under the `limits.episode_s` deadline."""
        try:
            async with self.clock:
                yield
        except TimeoutError:
            if not self.clock.expired():
                raise
            await check_answers(self.sandbox)
            for tool in self.opened:
                await tool.check_answers()
            if session.source.repeats:
                raise TookTooLong(
                    "playing back the turns before the fork took too long", remedy="raise limits.episode_s"
                ) from None
            session.outcome = EpisodeEnd("wall")
            self.stop = "wall"
        finally:
            await session.state.settle()

    def judge(self, error: BaseException) -> Verdict:
        """Returns the verdict on an exception; records the error with its stage."""
        judged = verdict(error, suspected=self.suspected)
        if self.session is None and (judged.status == "truncated" or judged.suspect):  # the agent has done nothing yet
            judged = Verdict("infra_error", retry=True)
        self.stop = judged.stop
        if judged.status not in ("done", "truncated"):
            inside = self.session is not None and self.stage == "agent"
            self.error = describe(error, self.session.state.stage if inside and self.session else self.stage)
        return judged

    async def score(self) -> None:
        """Scores turns and rewards; the sandbox still lives, for verifiers that read it."""
        await self._score_turns()
        self._end_session()
        self.enter("score")
        self.info = {**(self.session.info if self.session is not None else {}), **info_of(self.environments)}
        read = self.session.images.read if self.session is not None else None
        decode = self.context.renderer.tokenizer.decode
        live = Live(next(iter(self.environments), None), self.tools, self.info, read, decode, self.suspected)
        # Components see the episode as stored, but without its reward.
        try:
            async with within(self.context.limits.score_s, "scoring", "limits.score_s", self.sandbox):
                self.scored = await self.context.rewards.score(
                    self.task, self.episode(), self.sandbox, self._open_verifier(), live
                )
        except TookTooLong:
            if self.context.outage.lasts:
                raise SandboxUnavailable("the sandbox backend was away until the rewards' deadline") from None
            raise

    def _scorers(self) -> tuple[AnswerScorer | None, HindsightScorer | None]:
        used = self.spec.split in ("train", "rollout")
        return (self.context.answer_scorer, self.context.hindsight) if used else (None, None)

    def _reserve(self, prompt: Sequence[int]) -> int:
        """Returns the tokens that are scored after a prompt: every turn's prompt must leave room for them."""
        gold, hindsight = self._scorers()
        renderer = self.context.renderer
        room = 0 if gold is None else gold.room(renderer, self.spec.task, prompt)
        return room if hindsight is None else max(room, hindsight.room(renderer, prompt))

    async def _score_turns(self) -> None:
        """Scores turns before the engine drops the session: its cache holds their prompts."""
        (gold, hindsight), session, context = self._scorers(), self.session, self.context
        if session is None or not len(session.state.recording):
            return
        record, engine, renderer = session.state.recording, context.engine, context.renderer
        drafts, trajectory = record.drafts, record.trajectory
        if gold is not None:
            self.enter("information_gain")
            scoring = gold.score(engine, renderer, self.spec.task, trajectory, drafts)
            for draft, found in zip(drafts, await self._in_time(scoring, "of the gold answer"), strict=True):
                draft.gold_logprob = found
        if hindsight is not None:
            self.enter("hindsight")
            answer = session.outcome.answer if session.outcome is not None else None
            scoring = hindsight.score(engine, renderer, trajectory, drafts, answer)
            for draft, found in zip(drafts, await self._in_time(scoring, "in hindsight"), strict=True):
                draft.hindsight_logprob = found

    async def _in_time(self, scoring: Coroutine[Any, Any, list[float | None]], what: str) -> list[float | None]:
        seconds = self.context.limits.generate_s
        try:
            async with Deadline(seconds) as deadline:
                return await scoring
        except TimeoutError:
            if not deadline.expired():
                raise
            raise EngineError(f"no scores {what} within {seconds:g} s", remedy="raise limits.generate_s") from None

    def _end_session(self) -> None:
        if self.session is not None and not self._session_ended:
            self._session_ended = True
            self.close_errors += [describe(error, "close") for error in self.session.state.end()]
        self.speakers.release()
        self.speakers = self.context.speakers

    async def _start(self, backend: Backend, spec: SandboxSpec, label: str) -> Sandbox:
        try:
            return await self.context.outage.create(backend, spec, label, self.context.limits.sandbox_s)
        except (SandboxImageUnusable, CapabilityMissing) as error:
            place = ", ".join(filter(None, [f"task {self.spec.task.id!r}", error.place]))
            raise type(error)(error.message, place=place, remedy=error.remedy) from None

    def _open_verifier(self) -> OpenSandbox | None:
        """Starts a fresh sandbox for a reward component, which closes it; None without a backend."""
        backend = self.context.backend
        if backend is None:
            return None
        spec, label = self.context.specs.of(self.spec.task), f"{self.spec.id}/verify"
        return lambda **changes: self._start(backend, spec.changed(**changes), label)

    async def close(self) -> None:
        """Closes tools and sandbox; a failure here cannot change the status of the episode."""
        self._end_session()
        self.context.conversations.states.pop(self.spec.id, None)
        self.enter("close")
        # Only tools that override it: after a Ctrl-C, closing must not wait for threads without need.
        owned = [tool for tool in reversed(self.opened) if type(tool).close is not Tool.close]
        closers: list[Coroutine[Any, Any, Any]] = [called(tool, tool.close) for tool in owned]
        if self.sandbox is not None:
            closers.append(self.sandbox.close())
        for closer in closers:
            try:
                async with within(self.context.limits.close_s, "closing", "limits.close_s", None):
                    await closer
            except BaseException as error:
                if asked_to_stop(error):
                    raise
                self.close_errors.append(describe(error, "close"))
        self.enter("end")

    def release(self) -> None:
        """Breaks the reference cycles of attempt, session and conversations, so that their memory is freed at once.

        The garbage collector looks for cycles rarely while episodes run.
        """
        if self.session is not None:
            self.session.state.release()
            self.session = None

    def record(self, judged: Verdict) -> tuple[Episode, Verdict]:
        """Returns the episode for the store, and its verdict. If it cannot be stored, it is an empty `user_error`."""
        episode = self.episode(judged)
        try:
            must_be_storable(episode)
        except StoreError as error:
            self.stage = "record"
            judged = self.judge(error)
            task = Task.of(self.spec.task.id, "")
            nothing: dict[str, Any] = {"prompt": [], "nodes": [], "turns": [], "drift": [], "answer": None}
            nothing |= {"tools": None, "info": {}, "images": [], "branches": [], "contexts": {}, "parent": None}
            episode = msgspec.structs.replace(self.episode(judged), task=task, **nothing)
        return episode, judged

    def episode(self, judged: Verdict | None = None) -> Episode:
        """Returns the current record."""
        episode = self.unscored(judged)
        return self.scored.onto(episode) if self.scored is not None and self.error is None else episode

    def unscored(self, judged: Verdict | None = None) -> Episode:
        """Returns the record without its score: turns have the rewards of tools and the agent."""
        session, spec = self.session, self.spec
        outcome = session.outcome if session is not None else None
        status = judged.status if judged is not None else "done"
        if status == "done" and self.stop == "wall":
            status = "truncated"
        timings = dict(self.timings, total=time.perf_counter() - self.started)
        if session is not None:
            timings.update(session.state.seconds)
        episode = Episode(
            id=spec.id, group_id=spec.group_id, task=self.task, iteration=spec.iteration, split=spec.split,
            attempt=self.number, status=status,
            prompt=session.opening if session else [],
            answer=outcome.answer if outcome else None,
            stop=self.stop or (outcome.stop if outcome else ""),
            error=self.error,
            temperature=self.sampling.temperature,
            timings={name: round(value, 6) for name, value in timings.items()},
            created_at=self.created_at,
            trainable=self.context.engine.trainable,
            tools=session.definitions if session else None,
            info=self.info,
            parent=spec.resumes.parent if spec.resumes else None,
            **(session.state.fields() if session else {}),
        )  # fmt: skip
        return with_images(episode, self.images.taken if self.images is not None else {})

    def enter(self, stage: str) -> None:
        now = time.perf_counter()
        if self.stage != "start":
            self.timings[self.stage] = self.timings.get(self.stage, 0.0) + now - self._since
        self.stage, self._since = stage, now
        self.context.on_stage(self.spec.id, stage)


def _keyed(agent: Agent | None, tools: Sequence[Tool]) -> list[HasStateKey]:
    """Returns the agent and tools that may know the state of the episode. A fork has no agent."""
    knows = [tool for tool in tools if tool.knows_state]
    return [*([agent] if agent and type(agent).state_key is not Agent.state_key else []), *knows]
