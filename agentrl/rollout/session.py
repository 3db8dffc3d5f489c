"""The session: what an agent drives. One per episode attempt."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from agentrl.chat.formats.parser import ParsedCall, Reply
from agentrl.chat.renderer import Renderer
from agentrl.config.limits import Limits
from agentrl.rollout.faults.failures import LimitReached, check_answers, within
from agentrl.rollout.graph import TokenGraph
from agentrl.tools.base import Observation, ToolResult
from agentrl.tools.methods import ToolMethod
from agentrl.tools.toolset import ToolBox
from agentrl.tools.voice import answer_of, voices
from agentrl.types import values
from agentrl.types.engine import ContextOverflow, Engine, Sampling
from agentrl.types.episode import CallRecord, Episode, Turn
from agentrl.types.errors import AgentRLError, EngineError, InfraError, ToolError, asked_to_stop, described, place_of
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message, Task

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox


T = TypeVar("T")


class Keyed(Protocol):
    """What knows the state of the episode: an agent, a tool."""

    def state_key(self) -> Any:
        """The state that the next turn acts on."""
        ...


@dataclass(frozen=True)
class EpisodeEnd:
    """How an agent ended its episode. An answer that is no text becomes it."""

    stop: str
    answer: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", values.text(self.stop))
        if self.answer is not None:
            object.__setattr__(self, "answer", values.text(self.answer))


class SessionMisused(AgentRLError):
    """An agent asked for what a conversation cannot do."""


class Session:
    """The conversation of one episode, its tokens, its tools and its limits.

    An agent calls `generate`, then `run_tools` or `respond`, until `outcome` is set or a limit ends it. Every message
    and token that passes is recorded here; nothing else writes the record. What an agent or a tool hands in is checked
    here and made what a record holds (`agentrl/types/values.py`).

    Attributes:
        messages: a copy of the conversation so far, the sampled replies included.
        outcome: set by `finish`; the agent should return then.
        definitions: of the tools that could be called at first; None: those of the recipe.
    """

    def __init__(
        self,
        episode_id: str,
        task: Task,
        *,
        engine: Engine,
        renderer: Renderer,
        box: ToolBox,
        sandbox: Sandbox | None,
        sampling: Sampling,
        limits: Limits,
        max_turns: int,
        seed: int,
        put_blob: Callable[[bytes], str] | None = None,
        reserve: Callable[[Sequence[int]], int] = lambda prompt: 0,
        keyed: Sequence[Keyed] = (),
    ) -> None:
        self.id, self.task, self.sandbox = episode_id, task, sandbox
        self.engine, self.renderer, self._recipes_renderer = engine, renderer, renderer
        self.sampling, self.limits, self.max_turns = sampling, limits, max_turns
        self.tools, self.methods = box.instances, box.read()
        self.seed = seed
        self.messages: list[Message] = []
        self.opening: list[Message] = []
        self.graph = TokenGraph()
        self.turns: list[Turn] = []
        self.outcome: EpisodeEnd | None = None
        self.stage = "agent"
        self.seconds = {"generate": 0.0, "tools": 0.0}
        self._box, self._put_blob, self._reserve, self._keyed = box, put_blob, reserve, keyed
        self._pending: list[Message] = []
        self._locks: dict[int, asyncio.Lock] = {}
        self._under_way = ""
        self.definitions: list[dict[str, Any]] | None = None
        self._offered: list[dict[str, Any]] | None = None
        self._changed: list[dict[str, Any]] | None = None
        box.check()
        if not box.as_in_recipe:
            self._show(self.methods)

    @cached_property
    def rng(self) -> random.Random:
        """For agents that draw random numbers; fixed by the episode's id and the run's seed."""
        return random.Random(self.seed)

    def begin(self, messages: list[Message], shown: Sequence[Message] = ()) -> None:
        """Opens the conversation. It is rendered for the first reply: until then, `say` adds to it.

        Args:
            shown: what the environments open with, checked.
        """
        self.opening = [*values.messages(messages, "the opening"), *shown]
        self.messages[:] = map(dict, self.opening)

    def begin_engine(self) -> None:
        """Tells the engine that the episode starts."""
        self.engine.begin_session(self.id, self.task, self.messages, self.seed)
        if self.definitions is not None:
            self._tell_engine()

    async def generate(self, *, agent: str = "agent") -> Reply:
        """One model turn.

        Raises:
            LimitReached: no turn or no token is left; the episode ends as truncated.
            EngineError: the engine failed or took longer than `limits.generate_s`.
            SessionMisused: another `generate` or `run_tools` of this session is under way.
        """
        self._alone("generate()")
        try:
            return await self._generate(values.text(agent))
        finally:
            self._under_way = ""

    async def _generate(self, agent: str) -> Reply:
        if len(self.turns) >= self.max_turns:
            raise LimitReached("turns")
        if self._box.changes:
            self._read_tools()
        self._render_pending()
        prompt = self.graph.tokens
        if len(prompt) + self._reserve(prompt) >= self.engine.max_context:
            raise ContextOverflow(f"{len(prompt)} tokens, the engine takes {self.engine.max_context}")
        state = self._state() if self._keyed else None
        sampling = msgspec.structs.replace(
            self.sampling,
            stop_token_ids=tuple(self.renderer.stop_token_ids),
            seed=derive_seed(self.seed, "turn", len(self.turns)),
        )
        started, self.stage = time.perf_counter(), "generate"
        try:
            async with asyncio.timeout(self.limits.generate_s):
                completion = await self.engine.generate(prompt, sampling, self.id)
        except TimeoutError:
            raise EngineError(
                f"no completion within {self.limits.generate_s:g} s", remedy="raise limits.generate_s"
            ) from None
        seconds, self.stage = time.perf_counter() - started, "agent"
        self.seconds["generate"] += seconds
        text, reply = self.renderer.read(prompt, completion.token_ids, list(self.methods))
        node = self.graph.append_sampled(completion)
        self.messages.append({"role": "assistant", "content": text})
        self.turns.append(
            Turn(
                index=len(self.turns),
                node=node,
                text=text,
                finish=completion.finish,
                state=state,
                agent=agent,
                generate_s=seconds,
                usage=completion.usage,
                tools=self._changed,
            )
        )
        self._changed = None
        return reply

    async def run_tools(self, reply: Reply) -> list[ToolResult]:
        """Runs the calls of the last turn and appends what came back.

        Calls of one tool instance run in the order in which they were written, those of different tools side by side.

        Malformed calls, unknown tools, exceptions of tools and timeouts become observations for the model; only
        `InfraError`, rewards that are no numbers and cancellation go up. The other calls are then cancelled.

        Raises:
            SessionMisused: another `generate` or `run_tools` of this session is under way.
        """
        self._alone("run_tools()")
        try:
            return await self._run_tools(reply)
        finally:
            self._under_way = ""

    async def _run_tools(self, reply: Reply) -> list[ToolResult]:
        started, self.stage = time.perf_counter(), "tools"
        records: list[CallRecord] = [
            CallRecord(
                id=f"fault_{k}",
                name=fault.tool,
                arguments={},
                outcome="unknown" if fault.tool else "malformed",
                foreign=fault.foreign,
                result=f"Error: {fault.message}",
                duration_s=0.0,
            )
            for k, fault in enumerate(reply.errors)
        ]
        calls = [self._call_in_turn(k, call) for k, call in enumerate(reply.calls)]
        pairs = [await calls[0]] if len(calls) == 1 else await _together(calls)
        results = [result for _, result in pairs]
        records += [record for record, _ in pairs]
        self._observe(records, time.perf_counter() - started, results)
        self.stage = "agent"
        for result in results:
            if result.done and self.outcome is None:
                self.finish("answer" if result.answer is not None else "tool", result.answer)
        return results

    async def respond(self, reply: Reply) -> Observation | None:
        """Asks the environments, in order, what follows a reply without a tool call, and appends the first answer.

        Returns:
            None if none of them answers: the reply is the final one.

        Raises:
            TookTooLong: an environment did not answer within its `timeout_s`.
            SessionMisused: another `generate`, `run_tools` or `respond` of this session is under way.
        """
        asked = voices(self._box.environments)
        if not asked:
            return None
        self._alone("respond()")
        started, self.stage = time.perf_counter(), "tools"
        try:
            for voice in asked:
                name = type(voice).__name__
                async with within(voice.timeout_s, f"{name}.respond", f"timeout_s of {name}", self.sandbox):
                    said = await answer_of(voice, reply)
                if said is not None:
                    self._hear(said, time.perf_counter() - started)
                    return said
            return None
        finally:
            self._under_way, self.stage = "", "agent"

    def _hear(self, said: Observation, seconds: float) -> None:
        last, given = self.turns[-1], values.rewards(said.rewards, "respond")
        text, _ = cut_middle(said.text, self.limits.observation_chars)
        message: Message = {"role": said.role, "content": text}
        self.seconds["tools"] += seconds
        self.turns[-1] = msgspec.structs.replace(
            last,
            observations=[*last.observations, message],
            rewards=values.added(last.rewards, given),
            tools_s=last.tools_s + seconds,
        )
        self._append([message])
        if said.done and self.outcome is None:
            self.finish("answer" if said.answer is not None else "tool", said.answer)

    def say(self, text: str, *, role: str = "user") -> None:
        """Appends a message that no tool produced, for example a hint of the agent.

        Before the first reply it belongs to the opening.
        """
        message = values.message({"role": role, "content": text}, "what was said")
        if not self.turns:
            self._open([*self.opening, message])
            return
        last = self.turns[-1]
        self.turns[-1] = msgspec.structs.replace(last, observations=[*last.observations, message])
        self._append([message])

    def rewrite(self, messages: list[Message]) -> None:
        """Replaces the context (summary, dropped turns): a new branch starts, recorded as drift.

        Before the first reply it replaces the opening, and there is no drift.
        """
        checked = values.messages(messages, "the new context")
        if not self.turns:
            self._open(checked)
            return
        self.messages[:] = map(dict, checked)
        self._pending = []
        self.graph.restart(self.renderer.start(checked), turn=len(self.turns))

    def take(self, episode: Episode, tools: list[dict[str, Any]] | None) -> None:
        """Takes what was recorded elsewhere for this session: turns, tokens, the opening and its tools."""
        self.graph.nodes, self.graph.drift, self.turns = episode.nodes, episode.drift, episode.turns
        self.opening = episode.prompt or self.opening
        self.definitions = tools if tools is not None else self.definitions
        self.seconds["generate"] = episode.timings["generate"]

    def reward(self, **components: float) -> None:
        """Adds immediate reward components to the last turn; to those of the same name, also of its tools.

        Raises:
            ValueRefused: one is no finite number (bools, and scalars of NumPy and torch, are).
            SessionMisused: there is no turn yet.
        """
        if not self.turns:
            raise SessionMisused("reward() belongs to a turn, and there is none yet", remedy="call it after generate()")
        last, given = self.turns[-1], values.rewards(components, "session.reward")
        self.turns[-1] = msgspec.structs.replace(last, rewards=values.added(last.rewards, given))

    def finish(self, stop: str = "answer", answer: str | None = None) -> None:
        """Ends the episode; the agent should return. An answer that is no text becomes it (42 -> "42")."""
        self.outcome = EpisodeEnd(stop, answer)

    def _alone(self, what: str) -> None:
        """A conversation goes on from where it is: what two calls at once sampled would not be what is recorded."""
        if self._under_way:
            raise SessionMisused(
                f"{what} was called while {self._under_way} of the same session was under way",
                place=f"episode {self.id}",
                remedy="await one after the other; several replies to one prompt are several episodes of a group",
            )
        self._under_way = what

    def _open(self, messages: list[Message]) -> None:
        """Another opening, before the first reply."""
        self.begin(messages)
        self.graph = TokenGraph()

    async def _call_in_turn(self, index: int, call: ParsedCall) -> tuple[CallRecord, ToolResult]:
        """Runs a call, after the earlier ones of the same instance unless the tool allows them side by side."""
        method = self.methods.get(call.name)
        if method is None or method.owner.parallel:
            return await self._call(index, call)
        async with self._locks.setdefault(id(method.owner), asyncio.Lock()):
            return await self._call(index, call)

    async def _call(self, index: int, call: ParsedCall) -> tuple[CallRecord, ToolResult]:
        started = time.perf_counter()
        method = self.methods.get(call.name)
        outcome: Any = "ok"
        raised = ""
        if method is None:
            outcome = "unknown"
            result = ToolResult(f"Error: there is no tool {call.name!r}; tools: {', '.join(self.methods)}")
        else:
            try:
                async with asyncio.timeout(method.owner.timeout_s) as deadline:
                    result = await method.call(call.arguments)
            except ToolError as error:
                outcome, result = "error", ToolResult(f"Error: {values.said(error)}")
            except InfraError:
                raise
            except BaseException as error:
                if asked_to_stop(error):
                    raise
                if isinstance(error, TimeoutError) and deadline.expired():
                    await check_answers(self.sandbox)
                    outcome, message = "timeout", f"took longer than {method.owner.timeout_s:g} s"
                    result = ToolResult(f"Error: {call.name} {message}")
                else:
                    kind, message = type(error).__name__, values.said(error)
                    outcome, result = "raised", ToolResult(f"Error: {call.name}: {kind}: {message}")
                    raised = described(kind, message, place_of(error))
            if result.rewards is not None:
                given = values.rewards(result.rewards, method.place)
                result = ToolResult(result.text, result.done, result.answer, given)  # a subclass may be built otherwise
        text, dropped = cut_middle(result.text, self.limits.observation_chars)
        blob = self._put_blob(result.text.encode(errors="replace")) if dropped and self._put_blob else None
        record = CallRecord(
            id=call.id or f"call_{index}",
            name=call.name,
            arguments=call.arguments,
            outcome=outcome,
            result=text,
            duration_s=time.perf_counter() - started,
            raised=raised,
            dropped=dropped,
            blob=blob,
        )
        return record, result

    def _observe(self, records: list[CallRecord], seconds: float, results: list[ToolResult]) -> None:
        last = self.turns[-1]
        messages: list[Message] = [
            {
                "role": "tool",
                "name": record.name if record.valid else "error",
                "tool_call_id": record.id,
                "content": record.result,
            }
            for record in records
        ]
        rewards = last.rewards
        for result in results:
            rewards = values.added(rewards, result.rewards or {})
        self.seconds["tools"] += seconds
        self.turns[-1] = msgspec.structs.replace(
            last,
            calls=[*last.calls, *records],
            observations=[*last.observations, *messages],
            rewards=rewards,
            tools_s=last.tools_s + seconds,
        )
        self._append(messages)

    def _append(self, messages: list[Message]) -> None:
        self.messages.extend(map(dict, messages))
        self._pending.extend(messages)

    def _render_pending(self) -> None:
        """Renders the opening, or the observations since the last reply. Those that nobody will read never get here."""
        if self.graph.tip < 0:
            self.graph.append_rendered(self.renderer.start(self.opening))
        if self._pending:
            sampled = self.graph.nodes[self.graph.tip].token_ids
            self.graph.append_rendered(self.renderer.extend(sampled, self._pending))
            self._pending = []

    def _state(self) -> str | None:
        keys = [(each, key) for each in self._keyed if (key := each.state_key()) is not None]
        return "|".join(values.state_key(key, type(each).__name__) for each, key in keys) if keys else None

    def _read_tools(self) -> None:
        """What may be called in the turn to come. If prompts describe it and it changed, a new branch starts."""
        self.methods, shown = self._box.read(), self.renderer.tools
        definitions = [method.definition() for method in self.methods.values()]
        if definitions == self._offered:
            return
        self._show(self.methods)
        self._tell_engine()
        if not self.turns:
            self.graph = TokenGraph()
            return
        self._changed = self._offered
        if self.renderer.tools != shown:
            self._pending = []
            self.graph.restart(self.renderer.start(self.messages), turn=len(self.turns), kind="tools")

    def _show(self, methods: dict[str, ToolMethod]) -> None:
        """Takes the renderer, and the stop strings, of other tools than the recipe's."""
        # A copy: an environment may change its schemas.
        self._offered = offered = msgspec.to_builtins([method.definition() for method in methods.values()])
        if not self.turns:
            self.definitions = self._offered
        before = self.renderer.parser.stops()
        self.renderer = self._recipes_renderer.for_tools(offered)
        own = tuple(stop for stop in self.sampling.stop if stop not in before)
        stops = (*own, *self.renderer.parser.stops())
        if stops != self.sampling.stop:
            self.sampling = msgspec.structs.replace(self.sampling, stop=stops)

    def _tell_engine(self) -> None:
        if (use_tools := getattr(self.engine, "use_tools", None)) is not None:
            use_tools(self.id, self.renderer)


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of calls that run side by side. If one fails, the others are cancelled, and have ended."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cut_middle(text: str, limit: int) -> tuple[str, int]:
    """`text` cut to about `limit` characters, head and tail kept, and the number of characters dropped."""
    if len(text) <= limit:
        return text, 0
    head = limit * 2 // 3
    tail = limit - head
    dropped = len(text) - limit
    return f"{text[:head]}\n[... {dropped} characters dropped ...]\n{text[-tail:]}", dropped
