"""What tools and environments may do, and what stays theirs: threads, attributes, `info`, functions, schemas."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.simulate.clock import simulated
from agentrl.tools import calling, methods
from agentrl.tools.base import Environment, tool
from agentrl.tools.calling import OutOfTime, called, timed
from agentrl.types.clocks.threads import in_thread
from agentrl.types.engine import Completion, Sampling
from agentrl.types.errors import ToolError
from agentrl.types.task import Task
from tests.rollouts.test_environments import finds
from tests.rollouts.world import collect, make_context, make_parts, specs
from tests.waiting import turns

HERE = __name__


def quiet(task: Task, rng: Any) -> Any:
    yield Say("a")


# `info`.


class Adds(Environment):
    """Adds to the `info` that every environment has."""

    def open(self, task: Task, sandbox: Any) -> None:
        self.info[task.id] = 1


class Counts(Environment):
    """Changes the `info` of its class."""

    info: dict[str, Any] = {"opened": {"times": 0}}

    def open(self, task: Task, sandbox: Any) -> None:
        self.info["opened"]["times"] += 1


async def test_every_environment_has_an_info_of_its_own(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Adds", f"{HERE}:Counts"])
    episodes = await collect(make_context(parts, quiet), specs(3))
    assert [episode.info for episode in episodes] == [{f"t{k}": 1, "opened": {"times": 1}} for k in range(3)]
    assert (Environment.info, Environment().info, Counts.info) == ({}, {}, {"opened": {"times": 0}})


class Known(Environment):
    """Computes what it knows."""

    @property
    def info(self) -> dict[str, Any]:  # type: ignore[override]
        return {"computed": True}


async def test_info_may_be_computed(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Known"])
    (episode,) = await collect(make_context(parts, quiet), specs(1))
    assert episode.info == {"computed": True}


class Spoils(Environment):
    """Changes the task that it gets."""

    def open(self, task: Task, sandbox: Any) -> None:
        assert task.tools is not None
        assert task.sandbox is not None
        task.tools.append("none")
        task.sandbox["env"]["A"] = "changed"


async def test_a_task_is_not_changed_by_its_episodes(tmp_path: Path) -> None:
    task = Task.of("t", "Go.", tools=["Spoils"], sandbox={"env": {"A": "b"}})
    parts = make_parts(tmp_path, tools=[f"{HERE}:Spoils"])
    for episode in await collect(make_context(parts, quiet), [EpisodeSpec("e", "g", task)] * 2):
        assert (episode.status, episode.task.tools, episode.task.sandbox) == ("done", ["Spoils"], {"env": {"A": "b"}})


# Threads.


class Slow:
    """A synchronous method that takes as long as it is let."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def work(self) -> None:
        self.log.append("begin")
        self.begun.set()
        self.go.wait()
        self.log.append("end")

    async def look(self) -> list[str]:
        return [*self.log]


async def cancelled_in_work(slow: Slow) -> None:
    working = asyncio.create_task(called(slow, slow.work))
    await asyncio.to_thread(slow.begun.wait)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_an_asynchronous_call_waits_for_a_thread_that_goes_on() -> None:
    slow = Slow()
    await cancelled_in_work(slow)
    looking = asyncio.create_task(called(slow, slow.look))
    await turns()  # it needs one, if it does not wait
    assert not looking.done()
    slow.go.set()
    assert await looking == ["begin", "end"]


async def test_a_call_that_is_cancelled_before_its_turn_does_not_run() -> None:
    slow = Slow()
    await cancelled_in_work(slow)
    second = asyncio.create_task(called(slow, slow.work))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    slow.go.set()
    assert await called(slow, slow.look) == ["begin", "end"]


@pytest.mark.slow
async def test_the_lock_of_a_tool_is_not_among_its_attributes() -> None:
    gc.collect()
    adds, before = Adds(), len(calling._turns)
    await called(adds, adds.open, Task.of("t", ""), None)
    assert vars(copy.deepcopy(adds)) == {"info": {"t": 1}}
    assert len(calling._turns) == before + 1
    del adds
    gc.collect()
    assert len(calling._turns) == before


RELEASED = threading.Event()


class Hangs(Environment):
    """Its tool hangs, and there is nothing to close."""

    timeout_s = 0.05

    @tool
    def hang(self) -> str:
        """Hang."""
        RELEASED.wait()
        return "late"


def hangs(task: Task, rng: Any) -> Any:
    yield Say(calls=[("hang", {})])
    yield Say("a")


async def test_closing_does_not_wait_for_a_tool_that_has_nothing_to_close(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Hangs"], limits={"close_s": 0.05})
    failures: list[dict[str, Any]] = []
    (episode,) = await collect(make_context(parts, hangs), specs(1), failures=failures)
    RELEASED.set()
    assert (episode.turns[0].calls[0].outcome, episode.status, failures) == ("timeout", "done", [])


class NoneIdle(list[threading.Thread]):
    """Threads of earlier tests that end their calls now do not help."""

    def append(self, thread: threading.Thread) -> None: ...


async def test_where_no_thread_starts_the_machinery_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    parts = make_parts(tmp_path, tools=[f"{HERE}:Adds"], limits={"retries": 0})
    context = make_context(parts, quiet)
    monkeypatch.setattr("agentrl.types.clocks.threads._idle", NoneIdle())
    monkeypatch.setattr(threading.Thread, "start", full)
    (episode,) = await collect(context, specs(1))
    assert episode.error is not None
    assert (episode.status, episode.error.kind) == ("infra_error", "InfraError")
    assert "lower concurrency" in episode.error.message


async def test_a_thread_sees_the_context_and_its_exceptions_arrive() -> None:
    assert await in_thread(lambda: threading.current_thread().name) == "agentrl-tool"
    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(lambda: next(iter(())))
    with pytest.raises(SystemExit):
        await in_thread(exit_)


def exit_() -> None:
    raise SystemExit(3)


async def test_calls_share_idle_threads_and_never_wait_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    idle: list[threading.Thread] = []
    monkeypatch.setattr("agentrl.types.clocks.threads._idle", idle)
    released = threading.Event()
    first = await in_thread(threading.get_ident)
    assert [await in_thread(threading.get_ident) for _ in range(3)] == [first] * 3
    hangs = asyncio.create_task(in_thread(released.wait))
    await asyncio.sleep(0)
    assert await in_thread(threading.get_ident) != first
    released.set()
    await hangs
    assert len(idle) == 2


async def test_an_idle_thread_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    idle: list[threading.Thread] = []
    monkeypatch.setattr("agentrl.types.clocks.threads._idle", idle)
    monkeypatch.setattr("agentrl.types.clocks.threads.IDLE_S", 0.05)
    await in_thread(threading.get_ident)
    (thread,) = idle
    await asyncio.to_thread(thread.join)
    assert (idle, thread.is_alive()) == ([], False)
    assert await in_thread(lambda: "the next call has a new one") == "the next call has a new one"


# Functions and schemas that an environment makes.


class Makes(Environment):
    """Defines a tool in `tools()`, and changes the schema of another."""

    def open(self, task: Task, sandbox: Any) -> None:
        schema = {"properties": {"door": {"type": "string", "enum": ["red"]}}}
        self.enter = tool.from_schema("enter", "Enter.", schema, self.entered)

    def entered(self, arguments: dict[str, Any]) -> str:
        self.enter.schema["properties"]["door"]["enum"].append("blue")
        return "in"

    def tools(self) -> Sequence[Any]:
        @tool
        def wait() -> str:
            """Wait."""
            return "waited"

        return [wait, self.enter]


def enters(task: Task, rng: Any) -> Any:
    yield Say(calls=[("wait", {}), ("enter", {"door": "red"})])
    yield Say(calls=[("enter", {"door": "blue"})])
    yield Say("a")


@pytest.mark.slow
async def test_what_an_environment_offers_is_recorded_as_it_was_and_forgotten(tmp_path: Path) -> None:
    gc.collect()
    before = len(methods._described)
    parts = make_parts(tmp_path, tools=[f"{HERE}:Makes"])
    episodes = await collect(make_context(parts, enters), [EpisodeSpec("e", "g", Task.of("t", "Go."))] * 2)
    for episode in episodes:
        shown = [episode.tools, *(turn.tools for turn in episode.turns)]
        doors = [None if each is None else each[1]["function"]["parameters"]["properties"]["door"] for each in shown]
        assert [None if door is None else door["enum"] for door in doors] == [
            ["red"], None, ["red", "blue"], ["red", "blue", "blue"]
        ]  # fmt: skip
        assert [call.outcome for turn in episode.turns for call in turn.calls] == ["ok"] * 3
    gc.collect()
    assert len(methods._described) == before


class Stops(ScriptedEngine):
    """Notes the stop strings of every turn."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        STOPPED.append(sampling.stop)
        return await super().generate(token_ids, sampling, session)


STOPPED: list[tuple[str, ...]] = []


async def test_stop_strings_follow_the_tools_and_keep_those_of_the_recipe(tmp_path: Path) -> None:
    STOPPED.clear()
    tools, sampling = ["tests.rollouts.test_environments:Rooms"], {"stop": ["</unlock>", "END"]}
    parts = make_parts(tmp_path, tools=tools, agent={"format": "tags"}, sampling=sampling)
    (episode,) = await collect(make_context(parts, finds, engine=Stops), specs(1))
    own = ("</unlock>", "END")
    assert [(*own, "</look>"), (*own, "</look>", "</unlock>")] == STOPPED
    assert episode.answer == "red"


# Arguments that are all text are not checked by pydantic.


class Texts(Environment):
    """Tools whose arguments are text."""

    @tool
    async def plain(self, a: str, b: str) -> str:
        return a + b

    @tool
    async def short(self, a: str = Field(max_length=2)) -> str:
        return a

    @tool
    async def may_be_left_out(self, a: str = "x") -> str:
        return a

    @tool
    async def one_of(self, a: Literal["x", "y"]) -> str:
        return a

    @tool
    async def capitals(self, A: Literal["GET", "PUT"]) -> str:
        return A


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("plain", {"a": "x", "b": "y"}, "xy"),
        ("plain", {"a": "x"}, "argument 'b': field required"),
        ("plain", {"a": "x", "b": 1}, "argument 'b': input should be a valid string"),
        ("plain", {"a": "x", "b": "\ud800"}, "x?"),
        ("plain", {"a": "x", "b": "y", "c": "z"}, "unknown argument 'c'"),
        ("short", {"a": "xyz"}, "argument 'a': string should have at most 2 characters"),
        ("may_be_left_out", {}, "x"),
        ("one_of", {"a": "z"}, "argument 'a': input should be 'x' or 'y'"),
        ("capitals", {"A": "get"}, "argument 'A': input should be 'GET' or 'PUT'"),
        ("capitals", {}, "argument 'A': field required"),
    ],
)
async def test_arguments_that_are_text(name: str, arguments: dict[str, Any], said: str) -> None:
    method = methods.toolbox([Texts()])[name]
    try:
        found = (await method.call(arguments)).text
    except ToolError as error:
        found = str(error)
    assert found.startswith(said)
    assert (method.texts is not None) == (name == "plain")


# Time limits of calls.


async def gives(value: int) -> int:
    return value


async def waits(seen: list[str], error: BaseException | None = None) -> int:
    try:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        seen.append("cancelled")
        await asyncio.sleep(0)
        seen.append("cleaned up")
        raise
    return 1


async def test_a_call_that_never_waits_has_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio, "timeout")
    assert await timed(1.0, gives(3)) == 3


def test_a_call_that_waits_too_long_is_cancelled_and_may_clean_up() -> None:
    seen: list[str] = []
    with pytest.raises(OutOfTime):
        simulated(timed(60.0, waits(seen)))
    assert seen == ["cancelled", "cleaned up"]


@pytest.mark.parametrize("kind", [TimeoutError, ValueError])
async def test_what_a_call_raises_is_its_own(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="mine"):
        await timed(60.0, waits([], kind("mine")))


async def test_who_cancels_a_call_cancels_it() -> None:
    seen: list[str] = []
    task = asyncio.create_task(timed(60.0, waits(seen)))
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled", "cleaned up"]


class Held:
    """What a call holds."""


@pytest.mark.slow
def test_a_call_that_is_over_is_forgotten() -> None:
    """At once: cycles are looked for rarely while episodes run."""
    known: list[weakref.ref[Held]] = []

    async def holds() -> None:
        held = Held()
        known.append(weakref.ref(held))
        await asyncio.Event().wait()

    async def calls() -> None:
        for _ in range(3):
            with pytest.raises(OutOfTime):
                await timed(60.0, holds())
        await asyncio.sleep(0)
        assert [each() for each in known] == [None] * 3

    gc.collect()
    gc.disable()
    try:
        simulated(calls())
    finally:
        gc.enable()
