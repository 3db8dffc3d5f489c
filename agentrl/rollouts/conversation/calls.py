"""Runs the tool calls of a reply; returns their records and results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.chat.formats.parser import ParsedCall, ParseFault, Reply
from agentrl.config.limits import Limits
from agentrl.rollouts.faults.failures import LimitReached, TookTooLong, within
from agentrl.sandbox.health import check_answers
from agentrl.tools.base import Environment, Observation, ToolResult
from agentrl.tools.calling import OutOfTime, timed
from agentrl.tools.methods import ToolMethod
from agentrl.tools.responders import answer_of
from agentrl.types import values
from agentrl.types.clocks.threads import give_way
from agentrl.types.engine import ContextOverflow
from agentrl.types.episode import CallRecord, TurnDraft
from agentrl.types.errors import InfraError, RecipeError, ToolError, asked_to_stop, described, place_of
from agentrl.types.parts.content import Part, with_images
from agentrl.types.parts.image import ImageRefused
from agentrl.types.parts.intake import CannotSee, Images
from agentrl.types.task import Message

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

T = TypeVar("T")

AT_ONCE = 32
"""Calls of a reply that run at the same time: a reply may have thousands, and others wait for the same threads, helper
processes and connections."""

PER_TOKEN = 8
"""Characters of results for a token of the context, of which most results need fewer. See `room_for_results`."""

_LEAST = 4  # results of full length that fit into any reply
_MOST = 1 << 20  # characters of the results of a reply


def room_for_results(limits: Limits, max_context: int) -> int:
    """Returns the characters of results after which no further call of a reply runs: the next prompt would not fit.

    Thousands of calls with long results would take minutes to render, and hundreds of megabytes to store.
    """
    return max(_LEAST * limits.observation_chars, min(PER_TOKEN * max_context, _MOST))


@dataclass(frozen=True)
class Heard:
    """Answer of an environment to a reply.

    Attributes:
        said: as the environment gave it.
        message: for the conversation: cut, with images as parts.
        rewards: checked.
    """

    said: Observation
    message: Message
    rewards: dict[str, float]


@dataclass
class CallRunner:
    """Runs the calls of one episode, and takes the answers and rewards that follow replies.

    Attributes:
        put_blob: stores an output that is cut, returns its hash.
        images: of the episode.
        room: characters of the results of a reply, see `room_for_results`.
    """

    limits: Limits
    sandbox: Sandbox | None
    put_blob: Callable[[bytes], str] | None
    images: Images
    room: int = _MOST
    _locks: dict[int, asyncio.Lock] = field(default_factory=dict)

    async def run(self, reply: Reply, methods: Mapping[str, ToolMethod]) -> tuple[list[CallRecord], list[ToolResult]]:
        """Runs calls of one tool instance in the order of the reply, those of different tools concurrently.

        All run in that order if one of their tools may end the reply. Faults of the reply are recorded as calls, too.
        The records are in the order of calls and faults in the reply, whatever ran first.
        """
        running = _RunningReply(self.room)
        if len(reply.calls) > 1 and _side_by_side([methods.get(call.name) for call in reply.calls]):
            pairs = await _together(
                [self._call_in_turn(k, call, methods, running) for k, call in enumerate(reply.calls)]
            )
        else:
            pairs = []
            for k, call in enumerate(reply.calls):
                await give_way()
                pairs.append(await self._call_in_turn(k, call, methods, running))
        placed = [(fault.at, _unread(k, fault)) for k, fault in enumerate(reply.errors)]
        placed += [(call.at, record) for call, (record, _) in zip(reply.calls, pairs, strict=True)]
        return [record for _, record in sorted(placed, key=lambda each: each[0])], [result for _, result in pairs]

    async def respond(self, environments: Sequence[Environment], reply: Reply) -> Heard | None:
        """Asks environments in order for an answer to a reply without calls; returns the first one.

        Raises:
            TookTooLong: an environment did not answer within its `timeout_s`.
        """
        for each in environments:
            name = type(each).__name__
            async with within(each.timeout_s, f"{name}.respond", f"timeout_s of {name}", self.sandbox):
                said = await answer_of(each, reply)
            if said is not None:
                rewards = values.rewards(said.rewards, "respond")
                text, _ = cut_middle(said.text, self.limits.observation_chars)
                shown = [self.images.take(image) for image in said.images]
                return Heard(said, {"role": said.role, "content": with_images(text, shown)}, rewards)
        return None

    def reward(self, turn: TurnDraft, given: dict[str, float]) -> None:
        """Adds rewards that the agent gives to a turn."""
        turn.rewards = values.added(turn.rewards, given)

    async def _call_in_turn(
        self, index: int, call: ParsedCall, methods: Mapping[str, ToolMethod], running: _RunningReply
    ) -> tuple[CallRecord, ToolResult]:
        """Runs a call, after the earlier ones of the same instance unless the tool allows concurrent calls."""
        method = methods.get(call.name)
        if method is None or method.owner.parallel:
            async with running.places:
                return await self._call(index, call, methods, running)
        if (lock := self._locks.get(id(method.owner))) is None:
            lock = self._locks[id(method.owner)] = asyncio.Lock()
        await lock.acquire()
        try:
            return await self._call(index, call, methods, running)
        finally:
            lock.release()

    async def _call(
        self, index: int, call: ParsedCall, methods: Mapping[str, ToolMethod], running: _RunningReply
    ) -> tuple[CallRecord, ToolResult]:
        if running.ended_by is not None:
            by = f"{running.ended_by}, called before it in the same reply, changed what it was meant for"
            return _skipped(index, call, f"Not run: {by}.")
        if running.room <= 0:
            return _skipped(index, call, FULL)
        started = time.perf_counter()
        method = methods.get(call.name)
        outcome: Any = "ok"
        raised = ""
        shown: list[Part] = []
        if method is None:
            outcome = "unknown"
            result = ToolResult(f"Error: there is no tool {call.name!r}; tools: {', '.join(methods)}")
        else:
            try:
                result = await timed(method.owner.timeout_s, method.call(call.arguments))
                shown = [self.images.take(image) for image in result.images]
            except ToolError as error:
                outcome, result = "error", ToolResult(f"Error: {values.said(error)}", ends_reply=error.ends_reply)
            except OutOfTime:
                await check_answers(self.sandbox)
                await method.owner.check_answers()
                message = f"Error: {call.name} took longer than {method.owner.timeout_s:g} s"
                outcome, result = "timeout", ToolResult(message)
            except BaseException as error:
                if asked_to_stop(error) or _goes_up(error):
                    raise
                kind, message = type(error).__name__, values.said(error)
                outcome, result = "raised", ToolResult(f"Error: {call.name}: {kind}: {message}")
                raised = described(kind, message, place_of(error))
            if result.rewards is not None:
                given = values.rewards(result.rewards, method.place)
                # a subclass may be built otherwise
                result = ToolResult(
                    result.text, result.done, result.answer, given, result.images, result.points, result.ends_reply,
                    result.executed,
                )  # fmt: skip
            if result.ends_reply:
                running.ended_by = running.ended_by or call.name
        text, dropped = cut_middle(result.text, self.limits.observation_chars)
        running.room -= len(text) + sum(map(len, map(str, shown)))
        blob = self.put_blob(result.text.encode(errors="replace")) if dropped and self.put_blob else None
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
            images=shown,
            points=list(result.points),
        )
        return record, result


def _goes_up(error: BaseException) -> bool:
    """Returns True for errors that are not for the model: a limit of the episode, an infrastructure failure, a wrong
    recipe.
    """
    if isinstance(error, BaseExceptionGroup):  # of a TaskGroup: an outage in it counts
        return any(map(_goes_up, error.exceptions))
    if isinstance(error, ImageRefused):  # The tool made the image.
        return isinstance(error, CannotSee)
    ends = (LimitReached, ContextOverflow, InfraError, RecipeError, values.ValueRefused, TookTooLong)
    return isinstance(error, ends)


FULL = "Not run: too much to show."


class _RunningReply:
    """State of the calls of one reply while they run.

    Attributes:
        room: characters of results that still fit.
        ended_by: name of the call that ended the reply, if any.
        places: of calls that run at the same time.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.ended_by: str | None = None
        self.places = asyncio.Semaphore(AT_ONCE)


def _skipped(index: int, call: ParsedCall, text: str) -> tuple[CallRecord, ToolResult]:
    record = CallRecord(
        id=call.id or f"call_{index}",
        name=call.name,
        arguments=call.arguments,
        outcome="skipped",
        result=text,
        duration_s=0.0,
    )
    return record, ToolResult(text)


def _unread(index: int, fault: ParseFault) -> CallRecord:
    return CallRecord(
        id=fault.id or f"fault_{index}",
        name=fault.tool,
        arguments={},
        outcome="unknown" if fault.tool else "malformed",
        foreign=fault.foreign,
        result=f"Error: {fault.message}",
        duration_s=0.0,
    )


def _side_by_side(methods: Sequence[ToolMethod | None]) -> bool:
    """Returns True if calls may run concurrently: for tools of several instances, or that allow it."""
    owners = {id(method.owner): method.owner for method in methods if method is not None}
    if any(owner.ends_replies for owner in owners.values()):
        return False
    return len(owners) > 1 or any(owner.parallel for owner in owners.values())


async def _together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs calls concurrently and returns their results. If one fails, the others are cancelled and awaited."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cut_middle(text: str, limit: int) -> tuple[str, int]:
    """Cuts the middle of `text` to about `limit` characters; returns it and the number of characters dropped."""
    if len(text) <= limit:
        return text, 0
    head = limit * 2 // 3
    tail = limit - head
    dropped = len(text) - limit
    return f"{text[:head]}\n[... {dropped} characters dropped ...]\n{text[-tail:]}", dropped
