"""The session: what an agent drives. One per episode attempt."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.chat.parser import ParsedCall, Parser, Reply
from agentrl.chat.renderer import Renderer
from agentrl.engines.base import ContextOverflow, Engine, Sampling
from agentrl.episode.failures import LimitReached, asked_to_stop
from agentrl.episode.graph import TokenGraph
from agentrl.episode.limits import Limits
from agentrl.episode.record import CallRecord, Turn
from agentrl.errors import EngineError, InfraError, ToolError, described, place_of
from agentrl.seeds import derive_seed
from agentrl.task import Message, Task
from agentrl.tools.base import Tool, ToolResult, toolbox

if TYPE_CHECKING:
    from agentrl.sandbox.contract import Sandbox


@dataclass(frozen=True)
class Outcome:
    """How an agent ended its episode."""

    stop: str
    answer: str | None = None


class Session:
    """The conversation of one episode, its tokens, its tools and its limits.

    An agent calls `generate`, then `run_tools`, until `outcome` is set or a limit ends it. Every message and token
    that passes is recorded here; nothing else writes the record.

    Attributes:
        messages: the conversation so far, the sampled replies included.
        outcome: set by `finish`; the agent should return then.
    """

    def __init__(
        self,
        episode_id: str,
        task: Task,
        *,
        engine: Engine,
        renderer: Renderer,
        parser: Parser,
        tools: list[Tool],
        sandbox: Sandbox | None,
        sampling: Sampling,
        limits: Limits,
        max_turns: int,
        seed: int,
        put_blob: Callable[[bytes], str] | None = None,
        reserve: int = 0,
    ) -> None:
        self.id, self.task, self.sandbox = episode_id, task, sandbox
        self.engine, self.renderer, self.parser = engine, renderer, parser
        self.sampling, self.limits, self.max_turns = sampling, limits, max_turns
        self.tools, self.methods = tools, toolbox(tools)
        self.seed = seed
        self.messages: list[Message] = []
        self.opening: list[Message] = []
        self.graph = TokenGraph()
        self.turns: list[Turn] = []
        self.outcome: Outcome | None = None
        self.stage = "agent"
        self.seconds = {"generate": 0.0, "tools": 0.0}
        self._put_blob, self._reserve = put_blob, reserve
        self._pending: list[Message] = []
        self._locks: dict[int, asyncio.Lock] = {}

    @cached_property
    def rng(self) -> random.Random:
        """For agents that draw random numbers; fixed by the episode's id and the run's seed."""
        return random.Random(self.seed)

    def begin(self, messages: list[Message]) -> None:
        """Opens the conversation: renders the first prompt."""
        self.opening = list(messages)
        self.messages.extend(messages)
        self.graph.append_rendered(self.renderer.start(messages))

    async def generate(self, *, agent: str = "agent") -> Reply:
        """One model turn.

        Raises:
            LimitReached: no turn or no token is left; the episode ends as truncated.
            EngineError: the engine failed or took longer than `limits.generate_s`.
        """
        if len(self.turns) >= self.max_turns:
            raise LimitReached("turns")
        self._render_pending()
        if len(self.graph.tokens) + self._reserve >= self.engine.max_context:
            raise ContextOverflow(f"{len(self.graph.tokens)} tokens, the engine takes {self.engine.max_context}")
        state = self._state()
        sampling = msgspec.structs.replace(
            self.sampling,
            stop_token_ids=tuple(self.renderer.stop_token_ids),
            seed=derive_seed(self.seed, "turn", len(self.turns)),
        )
        started, self.stage = time.perf_counter(), "generate"
        try:
            async with asyncio.timeout(self.limits.generate_s):
                completion = await self.engine.generate(self.graph.tokens, sampling, self.id)
        except TimeoutError:
            raise EngineError(
                f"no completion within {self.limits.generate_s:g} s", remedy="raise limits.generate_s"
            ) from None
        seconds, self.stage = time.perf_counter() - started, "agent"
        self.seconds["generate"] += seconds
        node = self.graph.append_sampled(completion)
        said = completion.token_ids
        if said and said[-1] in sampling.stop_token_ids:
            said = said[:-1]
        text = self.renderer.tokenizer.decode(said)
        reply = self.parser.parse(text, list(self.methods))
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
            )
        )
        return reply

    async def run_tools(self, reply: Reply) -> list[ToolResult]:
        """Runs the calls of the last turn and appends what came back.

        Calls of one tool instance run in the order in which they were written, those of different tools side by side.

        Malformed calls, unknown tools, exceptions of tools and timeouts become observations for the model; only
        `InfraError` and cancellation go up.
        """
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
        pairs = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
        results = [result for _, result in pairs]
        records += [record for record, _ in pairs]
        self._observe(records, time.perf_counter() - started, results)
        self.stage = "agent"
        for result in results:
            if result.done and self.outcome is None:
                self.finish("answer" if result.answer is not None else "tool", result.answer)
        return results

    def say(self, text: str, *, role: str = "user") -> None:
        """Appends a message that no tool produced, for example a hint of the agent."""
        message = {"role": role, "content": text}
        last = self.turns[-1]
        self.turns[-1] = msgspec.structs.replace(last, observations=[*last.observations, message])
        self._append([message])

    def rewrite(self, messages: list[Message]) -> None:
        """Replaces the context (summary, dropped turns): a new branch starts, recorded as drift."""
        self.messages[:] = messages
        self._pending = []
        self.graph.restart(self.renderer.start(messages), turn=len(self.turns))

    def reward(self, **components: float) -> None:
        """Adds immediate reward components to the last turn."""
        last = self.turns[-1]
        self.turns[-1] = msgspec.structs.replace(last, rewards={**last.rewards, **components})

    def finish(self, stop: str = "answer", answer: str | None = None) -> None:
        """Ends the episode; the agent should return."""
        self.outcome = Outcome(stop, answer)

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
                async with asyncio.timeout(method.owner.timeout_s):
                    result = await method.call(call.arguments)
            except TimeoutError:
                outcome = "timeout"
                result = ToolResult(f"Error: {call.name} took longer than {method.owner.timeout_s:g} s")
            except ToolError as error:
                outcome, result = "error", ToolResult(f"Error: {error}")
            except InfraError:
                raise
            except (Exception, asyncio.CancelledError) as error:
                if asked_to_stop(error):
                    raise
                outcome, result = "raised", ToolResult(f"Error: {call.name}: {type(error).__name__}: {error}")
                raised = described(type(error).__name__, str(error), place_of(error))
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
        rewards = {name: value for result in results for name, value in (result.rewards or {}).items()}
        self.seconds["tools"] += seconds
        self.turns[-1] = msgspec.structs.replace(
            last,
            calls=[*last.calls, *records],
            observations=[*last.observations, *messages],
            rewards={**last.rewards, **rewards},
            tools_s=last.tools_s + seconds,
        )
        self._append(messages)

    def _append(self, messages: list[Message]) -> None:
        self.messages.extend(messages)
        self._pending.extend(messages)

    def _render_pending(self) -> None:
        """Renders the observations since the last reply. Those that nobody will read never get here."""
        if self._pending:
            sampled = self.graph.nodes[self.graph.tip].token_ids
            self.graph.append_rendered(self.renderer.extend(sampled, self._pending))
            self._pending = []

    def _state(self) -> str | None:
        keys = [key for tool in self.tools if (key := tool.state_key()) is not None]
        return "|".join(keys) if keys else None


def cut_middle(text: str, limit: int) -> tuple[str, int]:
    """`text` cut to about `limit` characters, head and tail kept, and the number of characters dropped."""
    if len(text) <= limit:
        return text, 0
    head = limit * 2 // 3
    tail = limit - head
    dropped = len(text) - limit
    return f"{text[:head]}\n[... {dropped} characters dropped ...]\n{text[-tail:]}", dropped
