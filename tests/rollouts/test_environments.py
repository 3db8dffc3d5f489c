"""Environments and tools per task: what is offered, said, recorded, and refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.session import Session
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.tools import calling
from agentrl.tools.base import Environment, Observation, Tool, ToolResult, tool
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.types.episode import Episode
from agentrl.types.errors import InfraError, RecipeError, TaskError, ToolError
from agentrl.types.sample import training_samples
from agentrl.types.task import Task
from tests.chat.test_renderer import USABLE, tokenizer_named
from tests.clock import Clock
from tests.rollouts.world import collect, make_context, make_parts
from tests.waiting import until_async

HERE = __name__


class Rooms(Environment):
    """A tool appears when the key was found."""

    async def open(self, task: Task, sandbox: Any) -> None:
        self.key = False
        self.info["rooms"] = 2

    @tool
    async def look(self) -> str:
        """Look around."""
        self.key = True
        return "a key"

    @tool
    async def unlock(self, door: str) -> ToolResult:
        """Unlock a door."""
        return ToolResult("open", done=True, answer=door)

    def tools(self) -> Sequence[Any]:
        return [self.look, *([self.unlock] if self.key else [])]

    def state_key(self) -> str:
        return f"key={self.key}"


class Voice(Environment):
    """Answers as its task says."""

    info: dict[str, Any] = {}

    def open(self, task: Task, sandbox: Any) -> None:
        self.task, self.said, self.info = task, [], {"loop": _in_loop()}

    def opening(self) -> Any:
        return self.task.data.get("opening", "What will you do?")

    async def respond(self, reply: Any) -> Any:
        self.said.append(reply.text)
        return await ANSWERS[self.task.data.get("answer", "end")]()


def _in_loop() -> bool:
    return threading.current_thread() is threading.main_thread()


async def _tool_error() -> Any:
    raise ToolError("not so")


async def _crash() -> Any:
    raise KeyError("room")


async def _away() -> Any:
    raise InfraError("the user is away")


async def _end() -> Any:
    return Observation("you win", done=True, rewards={"won": 1}, role="tool")


async def _none() -> Any:
    return None


async def _text() -> Any:
    return 42


ANSWERS: dict[str, Callable[[], Any]] = {
    "tool_error": _tool_error, "crash": _crash, "away": _away, "end": _end, "none": _none, "text": _text,
}  # fmt: skip


def finds(task: Task, rng: Any) -> Any:
    yield Say(calls=[("look", {})])
    yield Say(calls=[("unlock", {"door": "red"})])


def quiet(task: Task, rng: Any) -> Any:
    yield Say("a")


async def played(parts: Any, task: Task, script: Any, **more: Any) -> Episode:
    context = make_context(parts, script, **more)
    return (await collect(context, [EpisodeSpec("e", "g", task)]))[0]


# Tools that change.


async def test_tools_that_appear_start_a_branch_and_are_recorded(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Rooms"], agent={"system": "Play."})
    with RunDir.create(tmp_path / "run") as run:
        context = make_context(parts, finds)
        (episode,) = await collect(context, [EpisodeSpec("e", "g", Task.of("t", "Go."))], run=run)
    assert check(tmp_path / "run").ok
    names = [[tool["function"]["name"] for tool in shown or []] for shown in (episode.tools, episode.turns[1].tools)]
    assert names == [["look"], ["look", "unlock"]]
    assert episode.answer == "red"
    assert [(branch.reason, branch.turn) for branch in episode.branches] == [("tools", 1)]
    second = episode.nodes[episode.turns[1].node]
    prompt = [token for k in episode.path(second.parent) for token in episode.nodes[k].token_ids]
    renderer = context.renderer.for_tools(episode.turns[1].tools or [])
    first = episode.turns[0]
    messages = [*episode.prompt, {"role": "assistant", "content": first.text}, *first.observations]
    assert prompt == renderer.start(messages)
    assert "unlock" in ByteTokenizer().decode(prompt)
    rows = training_samples(episode, [1.0, 1.0])
    assert sum(int(row.loss_mask.sum()) for row in rows) == episode.sampled_tokens
    assert len(rows) == 2


async def test_tools_that_prompts_do_not_describe_start_no_branch(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Rooms"], agent={"describe_tools": False})
    episode = await played(parts, Task.of("t", "Go."), finds)
    assert (episode.answer, episode.branches, len(episode.leaves())) == ("red", [], 1)
    assert [tool["function"]["name"] for tool in episode.turns[1].tools or []] == ["look", "unlock"]


async def test_a_tool_that_is_not_offered_yet_is_unknown(tmp_path: Path) -> None:
    def early(task: Task, rng: Any) -> Any:
        yield Say(calls=[("unlock", {"door": "red"})])
        yield Say("I give up")

    episode = await played(make_parts(tmp_path, tools=[f"{HERE}:Rooms"]), Task.of("t", "Go."), early)
    assert episode.turns[0].calls[0].outcome == "unknown"


def tool_named(name: str, about: str = "About it.") -> dict[str, Any]:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


@pytest.mark.parametrize("name", USABLE)
def test_a_renderer_for_other_tools_renders_as_one_of_its_own(name: str) -> None:
    tokenizer = tokenizer_named(name)

    def made(tools: list[dict[str, Any]]) -> Renderer:
        return Renderer(tokenizer, parser_for(FormatSettings(), tokenizer, tools), tools)

    one, other = [tool_named("one")], [tool_named("two"), tool_named("three")]
    messages = [{"role": "user", "content": "Go."}]
    for tools in (other, []):
        assert made(one).for_tools(tools).start(messages) == made(tools).start(messages)
    assert made([]).for_tools(other).start(messages) == made(other).start(messages)


def test_tools_of_one_name_are_told_apart() -> None:
    renderer = Renderer(ByteTokenizer(), parser_for(FormatSettings(), ByteTokenizer(), []), [])
    for about in ("First.", "Second."):
        prompt = renderer.for_tools([tool_named("two", about)]).start([{"role": "user", "content": "Go."}])
        assert about in ByteTokenizer().decode(prompt)


def test_a_conversation_whose_tools_changed_trains_a_sample_for_each_set() -> None:
    renderer = Renderer(ByteTokenizer(), parser_for(FormatSettings(), ByteTokenizer(), []), [])
    sets = [[tool_named("one")], [tool_named("one"), tool_named("two")]]
    from agentrl.training.supervised.conversation import Said

    turns = [Said("First.", [{"role": "user", "content": "On."}]), Said("Second.", [], tools=sets[1])]
    told = SupervisedConversation("e", "g", [{"role": "user", "content": "Go."}], turns, tools=sets[0])
    samples = told.samples(renderer)
    texts = [ByteTokenizer().decode(sample.token_ids.tolist()) for sample in samples]
    assert [("two" in text, "Second." in text) for text in texts] == [(False, False), (True, True)]
    assert [[index for index, *_ in sample.turn_spans] for sample in samples] == [[0], [1]]
    assert [ByteTokenizer().decode(s.token_ids[s.loss_mask].tolist())[:7] for s in samples] == ["First.<", "Second."]


# What a task names.


class Other(Environment):
    """Another environment, with a name that `Rooms` has, too."""

    @tool
    async def look(self) -> str:
        """Look elsewhere."""
        return "elsewhere"


class Runner(Environment):
    """Runs what tasks define."""

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        return f"{name}({arguments}) {_in_loop()}"


class Plain(Tool):
    """Two tools without a voice."""

    @tool
    async def left(self) -> str:
        """Go left."""
        return "left"

    @tool
    async def right(self) -> str:
        """Go right."""
        return "right"


async def test_only_what_the_task_names_is_opened_and_offered(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Plain", f"{HERE}:Other", f"{HERE}:Voice"])
    cases: dict[tuple[str, ...], list[str]] = {
        ("left",): ["Plain", "Other", "Voice"],
        ("Plain", "Other"): ["Plain", "Other"],
        ("Voice",): ["Voice"],
    }
    for names, entries in cases.items():
        box = parts.tools.box(Task.of("t", "", tools=names))
        assert [type(instance).__name__ for instance in box.instances] == entries
    offered = {names: list(parts.tools.box(Task.of("t", "", tools=names)).read()) for names in cases}
    assert offered == {("left",): ["left"], ("Plain", "Other"): ["left", "right", "look"], ("Voice",): []}

    def turns(task: Task, rng: Any) -> Any:
        yield Say(calls=[("right", {})])
        yield Say("done")

    episode = await played(parts, Task.of("t", "Go.", tools=["left"], answer="none"), turns)
    assert [call.outcome for call in episode.turns[0].calls] == ["unknown"]


async def test_definitions_of_a_task_are_run_by_an_environment(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Runner"])

    def calls(task: Task, rng: Any) -> Any:
        yield Say(calls=[("weather", {"x": "Oslo"}), ("weather", {"x": 1}), ("weather", {})])
        yield Say("done")

    task = Task.of("t", "Go.", tools=[tool_named("weather")])
    episode = await played(parts, task, calls)
    results = [(call.outcome, call.result) for call in episode.turns[0].calls]
    assert results == [
        ("ok", "weather({'x': 'Oslo'}) False"),
        ("error", "Error: argument 'x': should be string"),
        ("error", "Error: argument 'x': field required"),
    ]
    assert episode.tools == [tool_named("weather")]


BAD_TASKS: dict[str, tuple[Task, Sequence[str], str]] = {
    "unknown": (Task.of("t7", "", tools=["lfet"]), ["Plain"], r"task 't7': there is no tool 'lfet'\n.*'left'"),
    "nobody runs": (Task.of("t7", "", tools=[tool_named("f")]), ["Plain"], "task 't7': it defines the tool 'f'"),
    "no name": (Task.of("t7", "", tools=[{"description": "?"}]), ["Runner"], "task 't7'"),
    "no object": (
        Task.of("t7", "", tools=[{"name": "f", "parameters": {"type": "string"}}]),
        ["Runner"],
        "task 't7'.*not an object",
    ),
    "one name": (Task.of("t7", "", tools=[tool_named("f"), tool_named("f")]), ["Runner"], "task 't7': tool name 'f'"),
    "two environments": (Task.of("t7", "", tools=["Other", "Twin"]), ["Other", "Twin"], "task 't7': tool name 'look'"),
}


class Twin(Other):
    """Has the tools of another one."""


@pytest.mark.parametrize("case", BAD_TASKS)
def test_tools_of_a_task_that_cannot_be(tmp_path: Path, case: str) -> None:
    task, tools, message = BAD_TASKS[case]
    parts = make_parts(tmp_path, tools=[f"{HERE}:{name}" for name in tools])
    with pytest.raises((TaskError, RecipeError), match=f"(?s){message}"):
        parts.tools.check(task)


async def test_a_name_that_open_tools_do_not_offer_ends_its_episode(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Rooms"])
    episode = await played(parts, Task.of("t7", "Go.", tools=["look", "fly"]), finds)
    assert episode.error is not None
    assert (episode.status, episode.error.kind) == ("user_error", "TaskError")
    assert "task 't7': there is no tool 'fly'" in episode.error.message


# The voice.


@pytest.mark.parametrize(
    ("answer", "status", "stop", "heard"),
    [
        ("end", "done", "tool", [{"role": "tool", "content": "you win"}]),
        ("none", "done", "answer", []),
        ("text", "truncated", "turns", [{"role": "user", "content": "42"}]),
        ("tool_error", "truncated", "turns", [{"role": "user", "content": "Error: not so"}]),
        ("crash", "user_error", "", None),
        ("hang", "user_error", "", None),
        ("away", "infra_error", "", None),
    ],
)
async def test_what_an_environment_answers(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    status: str,
    stop: str,
    heard: list[dict[str, Any]] | None,
) -> None:
    clock = Clock(monkeypatch)

    async def hang() -> Any:
        clock.forward(Voice.timeout_s)
        await asyncio.Event().wait()

    monkeypatch.setitem(ANSWERS, "hang", hang)
    parts = make_parts(tmp_path, tools=[f"{HERE}:Voice"], agent={"max_turns": 2}, limits={"retries": 0})

    def says(task: Task, rng: Any) -> Any:
        while True:
            yield Say("go north")

    episode = await played(parts, Task.of("t", "Walk.", answer=answer), says)
    assert (episode.status, episode.stop) == (status, stop)
    if heard is not None:
        assert episode.turns[0].observations == heard
        assert [message["content"] for message in episode.prompt] == ["Walk.", "What will you do?"]
        assert episode.info == {"loop": False}  # a synchronous `open` runs in a thread
        assert episode.turns[0].rewards == ({"won": 1.0} if answer == "end" else {})
    if answer == "hang":
        assert episode.error is not None
        assert "Voice.respond took longer than 60 s" in episode.error.message


async def test_an_answer_in_tags_goes_to_the_environment_first(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Voice"], agent={"max_turns": 2})

    def says(task: Task, rng: Any) -> Any:
        while True:
            yield Say("so <answer>north</answer>")

    for answer, stop, given in (("none", "answer", "north"), ("text", "turns", None)):
        episode = await played(parts, Task.of("t", "Walk.", answer=answer), says)
        assert (episode.stop, episode.answer) == (stop, given)


@pytest.mark.parametrize("opening", ["", [], {"role": "user", "content": "x"}, [{"role": "tool", "content": "y"}]])
async def test_forms_of_an_opening(tmp_path: Path, opening: Any) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Voice"])
    episode = await played(parts, Task.of("t", "Walk.", opening=opening), quiet)
    more = {str: 1, list: len(opening), dict: 1}[type(opening)]
    assert len(episode.prompt) == 1 + more


class Speechless(Environment):
    """What it knows is no JSON."""

    info = {"when": object()}


async def test_info_that_is_no_json_ends_its_episode(tmp_path: Path) -> None:
    episode = await played(make_parts(tmp_path, tools=[f"{HERE}:Speechless"]), Task.of("t", "Go."), quiet)
    assert episode.status == "user_error"
    assert episode.error is not None
    assert "Speechless: info.when is" in episode.error.message


# Rewards and states.


def by_env(env: Rooms) -> float:
    return float(env.key)


def by_tools(tools: list[Tool], info: dict[str, Any], episode: Episode) -> float:
    assert info == episode.info == {"rooms": 2}
    info["changed"] = True
    return float(len(tools))


async def test_rewards_take_what_the_episode_leaves(tmp_path: Path) -> None:
    rewards = {"env": {"use": f"{HERE}:by_env"}, "tools": {"use": f"{HERE}:by_tools"}}
    parts = make_parts(tmp_path, tools=[f"{HERE}:Rooms", f"{HERE}:Plain"], rewards=rewards)
    episode = await played(parts, Task.of("t", "Go."), finds)
    assert episode.components == {"env": 1.0, "tools": 2.0}
    assert [component.live_need for component in parts.rewards.components] == ["env", "tools"]
    assert episode.info == {"rooms": 2}


def test_a_reward_that_takes_an_environment_needs_one(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="takes 'env', and no tool of the recipe is an Environment"):
        make_parts(tmp_path, rewards={"env": {"use": f"{HERE}:by_env"}})


class Roomy(ToolAgent):
    """An agent that knows a state."""

    def state_key(self) -> Any:
        return ["agent", 1]


@pytest.mark.parametrize(
    ("credit", "states"),
    [
        ("gigpo", ['["agent", 1]|key=False', '["agent", 1]|key=True']),
        (f"{HERE}:own_credit", ['["agent", 1]|key=False', '["agent", 1]|key=True']),
        ("grpo", [None, None]),
    ],
)
async def test_states_are_noted_for_credit_that_reads_them(
    tmp_path: Path, credit: str, states: list[str | None]
) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Rooms"], agent={"use": f"{HERE}:Roomy"}, credit=credit)
    episode = await played(parts, Task.of("t", "Go."), finds)
    assert [turn.state for turn in episode.turns] == states


def own_credit(table: Any) -> Any:
    return table.score[table.trajectory]


# Synchronous tools.


class Blocking(Tool):
    """Tools that block."""

    holds, free = threading.Event(), threading.Event()

    def open(self, task: Task, sandbox: Any) -> None:
        self.log: list[str] = []

    @tool
    def work(self, hold: bool = False) -> str:
        """Blocks until it is free."""
        self.log.append("begin")
        if hold:
            self.holds.set()
            self.free.wait()
        self.log.append("end")
        return f"{self.log} {_in_loop()}"


class Turn:
    """Counts who waits for a lock."""

    def __init__(self, lock: Any, asked: list[Any]) -> None:
        self.lock, self.asked = lock, asked

    def __enter__(self) -> None:
        self.asked.append(self)
        if self.lock is not None:
            self.lock.acquire()

    def __exit__(self, *_: Any) -> None:
        if self.lock is not None:
            self.lock.release()


@tool
def alone(text: list[str]) -> str:
    """A function."""
    text.append("changed")
    raise StopIteration(text)


async def test_synchronous_tools_keep_nobody_waiting_and_do_not_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked, turn_of = Clock(monkeypatch), list[Any](), calling.turn_of
    monkeypatch.setattr(calling, "turn_of", lambda owner: Turn(turn_of(owner), asked))
    parts = make_parts(tmp_path, tools=[f"{HERE}:Blocking", f"{HERE}:alone"])

    def works(task: Task, rng: Any) -> Any:
        yield Say(calls=[("work", {}), ("work", {"hold": True}), ("work", {})])
        yield Say(calls=[("alone", {"text": ["a"]})])
        yield Say("done")

    playing = asyncio.create_task(played(parts, Task.of("t", "Go."), works))
    await until_async(Blocking.holds.is_set)  # the loop goes on
    before = len(asked)
    clock.forward(Blocking.timeout_s)
    await until_async(lambda: len(asked) > before)  # the third waits for its turn
    Blocking.free.set()
    episode = await playing
    calls = episode.turns[0].calls
    assert [call.outcome for call in calls] == ["ok", "timeout", "ok"]
    assert calls[0].result == "['begin', 'end'] False"
    assert calls[2].result == "['begin', 'end', 'begin', 'end', 'begin', 'end'] False"  # it waited for its turn
    (raised,) = episode.turns[1].calls
    assert (raised.outcome, raised.arguments) == ("raised", {"text": ["a"]})


class Engine(ScriptedEngine):
    """Notes what it is told of tools."""

    def use_tools(self, session: str, renderer: Renderer) -> None:
        super().use_tools(session, renderer)
        TOLD.append(list(renderer.parser.functions))


TOLD: list[list[str]] = []


async def test_an_engine_is_told_of_other_tools(tmp_path: Path) -> None:
    TOLD.clear()
    parts = make_parts(tmp_path, tools=[f"{HERE}:Rooms"])
    context = make_context(parts, finds, engine=Engine)
    await collect(replace(context), [EpisodeSpec("e", "g", Task.of("t", "Go."))])
    assert TOLD == [["look"], ["look", "unlock"]]


class Own(ToolAgent):
    """Asks the environment itself."""

    async def run(self, session: Session) -> None:
        said = await session.respond(await session.generate())
        assert said is not None
        session.finish("answer", said.text)


async def test_an_agent_of_ones_own_asks(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{HERE}:Voice"], agent={"use": f"{HERE}:Own"})
    episode = await played(parts, Task.of("t", "Go.", answer="text"), quiet)
    assert episode.answer == "42"
