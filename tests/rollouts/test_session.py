"""The session: what an agent may do, in which order, and what is recorded of it."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from agentrl.chat.formats.parser import ParsedCall, Reply
from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.config.agent import FormatSettings
from agentrl.config.limits import Limits
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.conversation.calls import AT_ONCE, CallRunner, room_for_results
from agentrl.rollouts.conversation.conversation import Conversation
from agentrl.rollouts.conversation.policies import MainPolicy
from agentrl.rollouts.conversation.resumption import Resumption
from agentrl.rollouts.conversation.state import EpisodeState
from agentrl.rollouts.session import Session
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.tools.base import Tool, ToolResult, tool
from agentrl.tools.methods import toolbox
from agentrl.tools.toolset import ToolEntry, ToolSet
from agentrl.types.engine import Completion, Engine, Sampling
from agentrl.types.episode import POLICY, VersionSpan
from agentrl.types.errors import InfraError, ToolError
from agentrl.types.parts.intake import Images
from agentrl.types.task import Task
from tests.chat.families import gemma4_thinking
from tests.rollouts.world import collect, make_context, make_parts, play_one

HERE = "tests.rollouts.test_session"


class Range(Tool):
    """Rewards every call, under one name."""

    @tool
    async def shoot(self, at: int) -> ToolResult:
        """Shoots."""
        return ToolResult("hit" if at < 3 else "miss", rewards={"hit": 1.0 if at < 3 else 0.0, f"at {at}": 1})


class Praising(Agent):
    """Rewards the turn before and after its tools."""

    async def run(self, session: Any) -> None:
        reply = await session.generate()
        session.reward(hit=0.25)
        await session.run_tools(reply)
        session.reward(hit=0.5, style=True)
        session.finish()


async def test_rewards_of_one_name_in_one_turn_add_up(tmp_path: Path) -> None:
    """Three shots of which two hit were one miss: the last call's reward was all that stayed."""

    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("shoot", {"at": at}) for at in (1, 2, 3)])

    parts = make_parts(tmp_path, tools=[f"{HERE}:Range"], agent={"use": f"{HERE}:Praising"})
    turn = (await play_one(make_context(parts, script))).turns[0]
    assert turn.rewards == {"hit": 2.75, "at 1": 1.0, "at 2": 1.0, "at 3": 1.0, "style": 1.0}


class Shelf(Tool):
    """Keeps what it is given, and adds to it."""

    @tool
    async def keep(self, entry: dict[str, Any]) -> str:
        """Keeps an entry."""
        entry["tags"].append("added by the tool")
        return str(entry["tags"])


async def test_a_tool_that_changes_its_arguments_does_not_change_the_record(tmp_path: Path) -> None:
    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("keep", {"entry": {"tags": ["x"]}})])

    parts = make_parts(tmp_path, tools=[f"{HERE}:Shelf"])
    (call,) = (await play_one(make_context(parts, script))).turns[0].calls
    assert call.result == "['x', 'added by the tool']"
    assert call.arguments == {"entry": {"tags": ["x"]}}


class Limited(Tool):
    """Takes what pydantic's fields say."""

    @tool
    async def pour(
        self,
        cups: Annotated[int, Field(ge=1, le=3, description="how many")],
        tea: Annotated[str, Field(alias="from", min_length=2)] = "green",
        sugar: Annotated[float, Field(default=0.5, lt=2)] = 0.5,
        milk: int = Field(2, ge=0),
    ) -> str:
        """Pours.

        Args:
            cups: not this
            tea: which
        """
        return f"{cups} {tea} {sugar} {milk}"


async def test_annotated_fields_are_honoured_whole() -> None:
    """Bounds, descriptions and aliases went lost without a word, and nine cups were poured."""
    method = toolbox([Limited()])["pour"]
    assert method.schema.keys() == {"type", "properties", "required"}
    assert method.schema["required"] == ["cups"]
    assert method.schema["properties"] == {
        "cups": {"type": "integer", "minimum": 1, "maximum": 3, "description": "how many"},
        "from": {"type": "string", "minLength": 2, "default": "green", "description": "which"},
        "sugar": {"type": "number", "exclusiveMaximum": 2, "default": 0.5},
        "milk": {"type": "integer", "minimum": 0, "default": 2},
    }
    assert (await method.call({"cups": 1})).text == "1 green 0.5 2"
    assert (await method.call({"cups": 3, "from": "black", "milk": 0})).text == "3 black 0.5 0"
    for arguments, said in [
        ({"cups": 9}, "argument 'cups': input should be less than or equal to 3"),
        ({"cups": 1, "from": "x"}, "argument 'from': string should have at least 2 characters"),
        ({"cups": 1, "tea": "black"}, "unknown argument 'tea'; allowed: ['cups', 'from', 'milk', 'sugar']"),
    ]:
        with pytest.raises(ToolError) as refused:
            await method.call(arguments)
        assert str(refused.value) == said


LOG: list[str] = []


class Breaks(Tool):
    """Its machinery fails once."""

    failed = False

    @tool
    async def fails(self) -> str:
        """Fails the first time."""
        if not Breaks.failed:
            Breaks.failed = True
            raise InfraError("the service is gone")
        return "ok"


class Acts(Tool):
    """Acts on something outside."""

    attempts = 0

    async def open(self, task: Task, sandbox: Any) -> None:
        Acts.attempts += 1
        self.attempt = Acts.attempts

    async def close(self) -> None:
        LOG.append(f"close {self.attempt}")

    @tool
    async def slow(self) -> str:
        """Waits for what only comes in the second attempt."""
        try:
            if self.attempt == 1:
                await asyncio.Event().wait()
            LOG.append(f"acts {self.attempt}")
        finally:
            LOG.append(f"ended {self.attempt}")
        return "done"


async def test_a_call_whose_sibling_lost_its_machinery_ends_with_its_attempt(tmp_path: Path) -> None:
    """It went on into the next attempt, and acted there."""

    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("slow", {}), ("fails", {})])

    LOG.clear()
    parts = make_parts(tmp_path, tools=[f"{HERE}:Breaks", f"{HERE}:Acts"])
    episode = await play_one(make_context(parts, script))
    assert (episode.status, episode.attempt) == ("done", 1)
    assert LOG == ["ended 1", "close 1", "acts 2", "ended 2", "close 2"]


class Twice(Agent):
    """Samples two replies at once."""

    async def run(self, session: Any) -> None:
        both = await asyncio.gather(session.generate(), session.generate(), return_exceptions=True)
        raise next(error for error in both if isinstance(error, Exception))


class Hasty(Agent):
    """Goes on before its tools have ended."""

    async def run(self, session: Any) -> None:
        reply = await session.generate()
        await asyncio.gather(session.run_tools(reply), session.generate())


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("Twice", "generate() was called while generate() of the same context was under way"),
        ("Hasty", "generate() was called while run_tools() of the same context was under way"),
    ],
)
async def test_two_things_at_once_on_one_conversation_are_refused(tmp_path: Path, agent: str, said: str) -> None:
    """Both replies came from one prompt, and the record had one behind the other."""

    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("echo", {"text": "x"}), ("note", {"text": "y"})])
        yield Say("bye")

    parts = make_parts(tmp_path, agent={"use": f"{HERE}:{agent}"})
    context = make_context(parts, script, Slow)
    episode = await play_one(context)
    assert (episode.status, episode.error and episode.error.kind) == ("user_error", "SessionMisused")
    assert episode.error is not None
    assert said in episode.error.message
    assert "several episodes of a group" in episode.error.message


class Slow(ScriptedEngine):
    """Gives others a turn before it replies, as every real engine does."""

    async def generate(self, *arguments: Any) -> Completion:
        await asyncio.sleep(0)
        return await super().generate(*arguments)


class Early(Agent):
    """Speaks, edits and rewards before the model has spoken."""

    async def run(self, session: Any) -> None:
        what = session.task.id
        if what == "say":
            session.say("It is Monday.")
            session.say("Be brief.", role="system")
        elif what == "rewrite":
            session.rewrite([{"role": "user", "content": "Something else."}])
        elif what == "reward":
            session.reward(early=1.0)
        await session.generate()
        session.finish()


async def test_what_is_said_before_the_first_reply_belongs_to_the_opening(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[], agent={"use": f"{HERE}:Early"})

    def script(task: Any, rng: Any) -> Any:
        yield Say("bye")

    specs = [EpisodeSpec(id, id, Task.of(id, "Go.")) for id in ("say", "rewrite", "reward")]
    context = make_context(parts, script)
    said, rewritten, rewarded = await collect(context, specs)
    assert [m["content"] for m in said.prompt] == ["Go.", "It is Monday.", "Be brief."]
    assert [m["content"] for m in rewritten.prompt] == ["Something else."]
    for episode in (said, rewritten):
        assert (episode.status, episode.drift) == ("done", [])
        assert [node.kind for node in episode.nodes] == ["prompt", "sampled"]
        assert episode.nodes[0].token_ids == context.renderer.start(episode.prompt)
    assert rewarded.status == "user_error"
    assert rewarded.error is not None
    assert "reward() belongs to a turn, and there is none yet\n  -> call it after generate()" in rewarded.error.message


class Scribbles(Agent):
    """Writes into the messages that it may read."""

    async def run(self, session: Any) -> None:
        reply = await session.generate()
        await session.run_tools(reply)
        for message in session.messages:
            message["content"] = object()
        await session.generate()
        session.finish()


async def test_the_messages_of_a_session_are_a_copy(tmp_path: Path) -> None:
    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("echo", {"text": "x"})])
        yield Say("bye")

    parts = make_parts(tmp_path, agent={"use": f"{HERE}:Scribbles"})
    episode = await play_one(make_context(parts, script))
    assert episode.status == "done"
    assert [message["content"] for message in episode.prompt] == ["Task 0."]
    assert [message["content"] for message in episode.turns[0].observations] == ["x"]


async def test_a_reply_that_calls_and_answers_runs_its_calls_first(tmp_path: Path) -> None:
    """The call was dropped without a record, and the result that the model had made up became the answer."""

    def script(task: Any, rng: Any) -> Any:
        seen = yield Say("<answer>made up</answer>", calls=[("echo", {"text": "true"})])
        yield Say(f"<answer>{seen[-1]['content']}</answer>")

    episode = await play_one(make_context(make_parts(tmp_path), script))
    assert [[call.result for call in turn.calls] for turn in episode.turns] == [["true"], []]
    assert (episode.stop, episode.answer) == ("answer", "true")


async def test_random_agents_keep_within_bounds_and_speak_where_there_is_no_tool(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[])
    episode = await play_one(make_context(parts, parts.scripts["random"]))
    assert (episode.status, len(episode.turns)) == ("done", 1)
    assert set((episode.answer or "").split()) <= {"Task", "0."}
    assert episode.answer

    parts = make_parts(tmp_path, tools=[f"{HERE}:Limited"], agent={"max_turns": 40})
    episode = await play_one(make_context(parts, parts.scripts["random"]))
    calls = [call for turn in episode.turns for call in turn.calls]
    assert {call.arguments["cups"] for call in calls} == {1, 2, 3}


class Looking(Tool):
    """Looks."""

    @tool
    async def look(self, at: str) -> str:
        """Looks."""
        return "room 7"


def gemma4() -> Renderer:
    tokenizer = gemma4_thinking()
    definitions = [method.definition() for method in toolbox([Looking()]).values()]
    return Renderer(tokenizer, parser_for(FormatSettings(), tokenizer, definitions), definitions)


def looking(engine: Any, renderer: Renderer) -> Session:
    task = Task.of("t", "Where?")
    calls = CallRunner(Limits(), None, None, Images(engine, Limits()))
    state = EpisodeState("e", task, calls, max_turns=3, seed=0)
    box = ToolSet((ToolEntry.of("look", Looking),)).box(task)
    session = Session(state, box, MainPolicy(POLICY, engine, renderer, Sampling()))
    session.begin([{"role": "user", "content": "Where?"}])
    return session


class Busy(Tool):
    """Counts the calls under way."""

    parallel = True
    now = most = ran = 0

    @tool
    async def look(self, at: str) -> str:
        """Looks."""
        self.now, self.ran = self.now + 1, self.ran + 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return "x" * 1000


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_reply_of_thousands_of_calls_keeps_nobody_waiting(
    parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its share of threads, processes and connections, and its results end with what a prompt can hold."""
    monkeypatch.setattr(Busy, "parallel", parallel)
    busy = Busy()
    engine: Any = ScriptedEngine(lambda task, rng: iter(()), gemma4(), gemma4().parser)
    limits = Limits(observation_chars=2000)
    calls = CallRunner(limits, None, None, Images(engine, limits), room_for_results(limits, 10_000))
    reply = Reply("", calls=[ParsedCall("look", {"at": "x"}, at=k) for k in range(3000)])
    records, results = await calls.run(reply, toolbox([busy]))
    assert busy.most == (AT_ONCE if parallel else 1)
    assert 80 <= busy.ran <= 80 + AT_ONCE
    assert (len(records), len(results)) == (3000, 3000)
    assert [record.outcome for record in records] == ["ok"] * busy.ran + ["skipped"] * (3000 - busy.ran)
    assert sum(len(record.result) for record in records) < 300_000
    assert (await calls.run(reply, toolbox([busy])))[0][0].outcome == "ok"  # the next reply has room again


async def test_a_script_acts_also_where_the_prompt_opens_a_thought() -> None:
    """Its second call stood within the thought that Gemma 4's template opens behind results."""

    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("look", {"at": "x"})])
        yield Say(calls=[("look", {"at": "y"})])
        yield Say("<answer>7</answer>")

    renderer = gemma4()
    engine = ScriptedEngine(script, renderer, renderer.parser)
    session = looking(engine, renderer)
    engine.begin_session("e", session.task, session.messages, 0)
    replies = []
    for _ in range(3):
        replies.append(await session.generate())
        await session.run_tools(replies[-1])
    assert [[call.arguments for call in reply.calls] for reply in replies] == [[{"at": "x"}], [{"at": "y"}], []]
    assert (replies[2].answer, [reply.errors for reply in replies]) == ("7", [[], [], []])


async def test_a_thought_that_a_prompt_leaves_open_and_nothing_closes_is_no_answer() -> None:
    """Gemma 4's template opens one behind results."""
    renderer = gemma4()
    tokenizer = renderer.tokenizer
    said = ['<|tool_call>call:look{at:<|"|>x<|"|>}<tool_call|><|tool_response>', "It must be room 7.<turn|>"]

    class Thinks(Engine):
        async def generate(self, prompt: Any, sampling: Sampling, session: str) -> Completion:
            ids = tokenizer.encode(said.pop(0), special=True)
            return Completion(
                token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop", versions=[VersionSpan(0, 0, len(ids))]
            )

    session = looking(Thinks(), renderer)
    await session.run_tools(await session.generate())
    reply = await session.generate()
    assert (reply.answer, reply.text) == (None, "")
    assert "never closed" in reply.errors[0].message


def _written(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


@pytest.mark.parametrize("order", [("whole", "broken"), ("broken", "whole"), ("whole", "broken", "unknown", "whole")])
async def test_what_came_back_is_in_the_order_of_the_calls(tmp_path: Path, order: tuple[str, ...]) -> None:
    """A template that shows no ids shows faults and results by their order alone: faults stood first."""
    forms = {
        "whole": '{{"name": "echo", "arguments": {{"text": "said {k}"}}}}',
        "broken": '{{"name": "echo", "arguments": {{"text": ',
        "unknown": '{{"name": "shout", "arguments": {{}}}}',
    }

    def script(task: Any, rng: Any) -> Any:
        yield Say(_written(*(forms[kind].format(k=k) for k, kind in enumerate(order))))

    parts = make_parts(tmp_path, agent={"format": "hermes"})
    turn = (await play_one(make_context(parts, script))).turns[0]
    outcome = {"whole": "ok", "broken": "malformed", "unknown": "unknown"}
    assert [call.outcome for call in turn.calls] == [outcome[kind] for kind in order]
    assert [call.result for call in turn.calls if call.outcome == "ok"] == [
        f"said {k}" for k, kind in enumerate(order) if kind == "whole"
    ]
    assert [message["tool_call_id"] for message in turn.observations] == [call.id for call in turn.calls]


def test_a_session_takes_few_things_and_so_does_what_carries_the_rest() -> None:
    most = {Session: 6, Conversation: 6, EpisodeState: 8, MainPolicy: 8, CallRunner: 8, Resumption: 8}
    taken = {each: len(inspect.signature(each).parameters) for each in most}
    assert {each.__name__: count for each, count in taken.items() if count > most[each]} == {}
