"""The runner and the session under every row of the failure table."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.config.credit import InformationGain
from agentrl.engines.scripted import Say
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.faults.budgets import TooManyUserErrors
from agentrl.rollouts.information_gain import AnswerScorer
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.rollouts.summary import summary
from agentrl.simulate.clock import simulated
from agentrl.tools.base import Tool, ToolResult, tool
from agentrl.types.episode import Episode
from agentrl.types.errors import EngineError, ToolError
from agentrl.types.sample import training_samples
from agentrl.types.task import Task
from tests.rollouts.world import Bench, FlakyEngine, calls, collect, make_context, make_parts, play_one, specs
from tests.waiting import until_async


def trained_tokens(episode: Episode) -> int:
    return sum(int(row.loss_mask.sum()) for row in training_samples(episode, [1.0] * len(episode.turns)))


async def test_every_planned_episode_is_emitted_exactly_once(tmp_path: Path) -> None:
    context = make_context(make_parts(tmp_path), calls("echo", text="hello"))
    episodes = await collect(context, specs(50), concurrency=7)
    assert sorted(e.id for e in episodes) == sorted(p.id for p in specs(50))
    for episode in episodes:
        assert (episode.status, episode.stop, episode.answer) == ("done", "answer", episode.task.data["answer"])
        assert [call.result for turn in episode.turns for call in turn.calls] == ["hello", ""]
        assert episode.turns[-1].rewards == {"ended": 0.5}
        assert trained_tokens(episode) == episode.sampled_tokens > 0


@pytest.mark.parametrize(
    ("name", "outcome", "text"),
    [
        ("refuse", "error", "Error: not today"),
        ("crash", "raised", "Error: crash: ZeroDivisionError: division by zero"),
        ("trip", "raised", "Error: trip: CancelledError"),
        ("hang", "timeout", "Error: hang took longer than 60 s"),
        ("nothing", "unknown", "nothing"),
        ("table", "ok", '[{"name": "née", "size": null}]'),
    ],
)
def test_whatever_a_tool_does_is_an_observation(tmp_path: Path, name: str, outcome: str, text: str) -> None:
    episode = simulated(play_one(make_context(make_parts(tmp_path), calls(name))))
    call = episode.turns[0].calls[0]
    assert call.outcome == outcome
    assert text in call.result
    assert (episode.status, len(episode.turns)) == ("done", 2)
    assert episode.turns[0].valid == (outcome != "unknown")


async def test_an_exception_of_a_tool_is_kept_with_its_line(tmp_path: Path) -> None:
    """The innermost line of the user's code, however deep in a library it was raised."""
    code = (
        "import json\nfrom agentrl import Tool, tool\n\nclass Bad(Tool):\n    @tool\n    async def bad(self) -> str:\n"
        "        return self._read()\n\n    def _read(self):\n        return json.loads('{')\n"
    )
    (tmp_path / "bad.py").write_text(code)
    parts = make_parts(tmp_path, tools=["tests.rollouts.world:Bench", "./bad.py:Bad"])
    (call,) = (await play_one(make_context(parts, calls("bad")))).turns[0].calls
    assert call.outcome == "raised"
    assert call.raised.startswith("JSONDecodeError: Expecting property name")
    assert call.raised.endswith(f" at {tmp_path / 'bad.py'}:10 in _read")


async def test_a_flood_is_cut_and_kept_whole_in_a_blob(tmp_path: Path) -> None:
    blobs: list[bytes] = []
    context = make_context(
        make_parts(tmp_path),
        calls("flood"),
        put_blob=lambda data: blobs.append(data) or "hash",  # type: ignore[func-returns-value]
    )
    call = (await play_one(context)).turns[0].calls[0]
    assert len(call.result) < 20_100
    assert call.result.startswith("<x")
    assert call.result.endswith("x>")
    assert f"{call.dropped} characters dropped" in call.result
    assert (call.blob, len(blobs[0])) == ("hash", 10_000_002)


async def test_an_engine_that_breaks_off_is_tried_again_from_the_start(tmp_path: Path) -> None:
    context = make_context(make_parts(tmp_path), calls("echo", text="x"), FlakyEngine)
    context.engine.failures = 2  # type: ignore[attr-defined]
    failures: list[dict[str, Any]] = []
    (episode,) = await collect(context, specs(1), failures=failures)
    assert (episode.status, episode.attempt, len(episode.turns)) == ("done", 2, 2)
    assert [(f["attempt"], f["final"], f["stage"]) for f in failures] == [
        (0, False, "generate"),
        (1, False, "generate"),
    ]


async def test_an_engine_that_stays_broken_gives_no_reward(tmp_path: Path) -> None:
    context = make_context(make_parts(tmp_path, rewards={"format": {}}), calls("echo", text="x"), FlakyEngine)
    context.engine.failures = 1000  # type: ignore[attr-defined]
    episode = await play_one(context)
    assert (episode.status, episode.reward, episode.components, episode.attempt) == ("infra_error", None, {}, 2)
    assert episode.error is not None
    assert episode.error.kind == EngineError.__name__
    assert not episode.scored


async def test_a_bug_in_a_reward_is_a_user_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def bad(task):\n    return task.data['no such key']\n")
    parts = make_parts(tmp_path, rewards={"bad": "./bad.py:bad"})
    episode = await play_one(make_context(parts, calls()))
    assert (episode.status, episode.reward) == ("user_error", None)
    assert episode.error is not None
    assert episode.error.stage == "score"
    assert "bad.py" in episode.error.traceback
    assert episode.error.place == f"{tmp_path / 'bad.py'}:2 in bad"
    assert episode.turns, "what happened before the error is kept"


async def test_a_reward_that_awaits_what_it_cancelled_is_a_user_error(tmp_path: Path) -> None:
    code = "import asyncio\n\nasync def bad(task):\n    waiting = asyncio.create_task(asyncio.Event().wait())\n"
    (tmp_path / "trips.py").write_text(f"{code}    waiting.cancel()\n    await waiting\n")
    episode = await play_one(make_context(make_parts(tmp_path, rewards={"bad": "./trips.py:bad"}), calls()))
    assert episode.status == "user_error"
    assert episode.error is not None
    assert (episode.error.kind, episode.error.stage) == ("RewardError", "score")
    assert "reward component 'bad' raised CancelledError" in episode.error.message


ENDING = """
import asyncio, sys
from agentrl import Agent, Tool, tool

class FromAbove(BaseException): pass  # as test frameworks raise

def end(task, place):
    if task.data.get("place") == place:
        raise {"exit": SystemExit(0), "above": FromAbove("skipped")}[task.data["how"]]

class Ends(Tool):
    async def open(self, task, sandbox):
        self.task = task
        end(task, "open")
    async def close(self):
        end(self.task, "close")
    @tool
    async def act(self) -> str:
        end(self.task, "tool")
        return "ok"

class Runs(Agent):
    async def run(self, session):
        end(session.task, "agent")
        await session.run_tools(await session.generate())
        session.finish("answer", "bye")

def scored(task):
    end(task, "score")
    return 1.0
"""


@pytest.mark.parametrize("how", ["exit", "above"])
async def test_user_code_that_exits_ends_its_episode_and_not_the_run(tmp_path: Path, how: str) -> None:
    (tmp_path / "ends.py").write_text(ENDING)
    parts = make_parts(
        tmp_path, tools=["./ends.py:Ends"], agent={"use": "./ends.py:Runs"}, rewards={"scored": "./ends.py:scored"}
    )
    tasks = [
        Task.of(place, "Go.", place=place, how=how) for place in ("open", "agent", "tool", "score", "close", "none")
    ]

    def acts(task: Any, rng: Any) -> Any:
        yield Say(calls=[("act", {})])

    failures: list[dict[str, Any]] = []
    specs = [EpisodeSpec(task.id, task.id, task) for task in tasks]
    found = {e.id: e for e in await collect(make_context(parts, acts), specs, concurrency=3, failures=failures)}
    lost = {"open", "agent", "score"}
    assert {id: e.status for id, e in found.items()} == {id: "user_error" if id in lost else "done" for id in found}
    assert found["tool"].turns[0].calls[0].outcome == "raised"
    assert {failure["episode"] for failure in failures} == lost | {"close"}
    assert all(str(tmp_path / "ends.py") in failure["place"] for failure in failures)


async def test_a_tool_s_own_timeout_is_not_taken_for_its_deadline(tmp_path: Path) -> None:
    code = "from agentrl import Tool, tool\n\nclass Asks(Tool):\n    @tool\n    async def ask(self) -> str:\n"
    (tmp_path / "asks.py").write_text(f"{code}        raise TimeoutError('the server did not answer')\n")
    parts = make_parts(tmp_path, tools=["tests.rollouts.world:Bench", "./asks.py:Asks"])
    (call,) = (await play_one(make_context(parts, calls("ask")))).turns[0].calls
    assert (call.outcome, call.result) == ("raised", "Error: ask: TimeoutError: the server did not answer")


@pytest.mark.parametrize(
    ("limit", "tools", "rewards", "said"),
    [
        ("open_s", ["./slow.py:Slow"], {}, "opening the tools took longer than 40 s"),
        ("score_s", ["tests.rollouts.world:Bench"], {"slow": "./slow.py:slow"}, "scoring took longer than 40 s"),
    ],
)
def test_a_deadline_of_user_code_names_its_limit(
    tmp_path: Path, limit: str, tools: list[str], rewards: dict[str, str], said: str
) -> None:
    code = "import asyncio\nfrom agentrl import Tool\n\nasync def slow(task):\n    await asyncio.Event().wait()\n\n"
    code += "class Slow(Tool):\n    async def open(self, task, sandbox):\n        await asyncio.Event().wait()\n"
    (tmp_path / "slow.py").write_text(code)
    parts = make_parts(tmp_path, tools=tools, rewards=rewards, limits={limit: 40})
    episode = simulated(play_one(make_context(parts, calls())))
    assert episode.status == "user_error"
    assert episode.error is not None
    assert episode.error.message == f"{said}\n  -> raise limits.{limit}"
    assert "slow.py" in episode.error.place


async def test_a_tool_may_return_a_result_of_its_own_class(tmp_path: Path) -> None:
    code = "from agentrl import Tool, ToolResult, tool\n\nclass Hit(ToolResult):\n    def __init__(self):\n"
    code += "        super().__init__('hit', rewards={'hit': True})\n\nclass Gun(Tool):\n    @tool\n"
    (tmp_path / "gun.py").write_text(f"{code}    async def shoot(self):\n        return Hit()\n")
    parts = make_parts(tmp_path, tools=["tests.rollouts.world:Bench", "./gun.py:Gun"])
    assert (await play_one(make_context(parts, calls("shoot")))).turns[0].rewards == {"hit": 1.0}


async def test_user_errors_have_a_budget(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def bad(task):\n    raise RuntimeError('oops')\n")
    parts = make_parts(tmp_path, rewards={"bad": "./bad.py:bad"}, limits={"user_errors": 3, "backoff_s": 0.0})
    seen: list[Episode] = []
    with pytest.raises(TooManyUserErrors, match="oops"):
        await collect(make_context(parts, calls()), specs(50), seen=seen)
    assert len(seen) == 4


def test_limits_truncate_and_still_score(tmp_path: Path) -> None:
    def forever(task: Any, rng: Any) -> Any:
        while True:
            yield Say(calls=[("echo", {"text": "again"})])

    parts = make_parts(tmp_path, rewards={"tool_success": {}}, agent={"max_turns": 3})
    episode = simulated(play_one(make_context(parts, forever)))
    assert (episode.status, episode.stop, len(episode.turns), episode.reward) == ("truncated", "turns", 3, 1.0)

    context = make_context(make_parts(tmp_path, rewards={"tool_success": {}}), forever)
    context.engine.max_context = 2200  # type: ignore[misc]
    episode = simulated(play_one(context))
    assert (episode.status, episode.stop, episode.reward) == ("truncated", "tokens", 1.0)

    parts = make_parts(tmp_path, rewards={"tool_success": {}}, limits={"episode_s": 30})
    episode = simulated(play_one(make_context(parts, calls("hang"))))
    assert (episode.status, episode.stop) == ("truncated", "wall")


class NeverScores(FlakyEngine):
    """Samples, and does not say what it makes of a gold answer."""

    async def score(self, prefix: Any, continuations: Any, at: Any = None) -> Any:
        await asyncio.Event().wait()


def test_an_engine_that_scores_no_gold_answer_in_time_has_failed(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, limits={"backoff_s": 0.0, "retries": 1})
    scorer = AnswerScorer(InformationGain())
    context = make_context(parts, calls("echo", text="a"), NeverScores, answer_scorer=scorer)
    failures: list[dict[str, Any]] = []
    (episode,) = simulated(
        collect(context, [EpisodeSpec("g#0", "g", specs(1)[0].task, split="train")], failures=failures)
    )
    assert (episode.status, len(failures)) == ("infra_error", 2)
    assert "no scores of the gold answer within 600 s" in failures[0]["message"]


async def test_cancelling_emits_nothing_and_leaves_no_task(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, limits={"episode_s": 60})
    context = make_context(parts, calls(*["hang"] * 5))
    playing = asyncio.create_task(collect(context, specs(8), concurrency=4))
    await until_async(lambda: Bench.hanging == 4)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
    assert context.engine._live == {}  # type: ignore[attr-defined]


class Told(Agent):
    """Answers with what it was told."""

    async def run(self, session: Any) -> None:
        await session.generate()
        session.finish("answer", session.split)


@pytest.mark.parametrize("split", ["train", "eval"])
async def test_an_agent_is_told_what_its_episode_is_for(tmp_path: Path, split: str) -> None:
    context = make_context(make_parts(tmp_path, agent={"use": f"{__name__}:Told"}), lambda task, rng: iter([Say("x")]))
    (episode,) = await collect(context, [replace(each, split=split) for each in specs(1)])
    assert episode.answer == split


class Forgetful(Agent):
    """Drops what it saw before the last turn."""

    async def run(self, session: Any) -> None:
        opening = list(session.messages)
        while session.outcome is None:
            reply = await session.generate()
            await session.run_tools(reply)
            if session.outcome is None:
                session.rewrite([*opening, {"role": "user", "content": f"{len(session.turns)} turns are behind you."}])


async def test_an_edited_context_is_a_new_branch_and_every_sampled_token_trains_once(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": "tests.rollouts.test_runner:Forgetful"})

    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("echo", {"text": "x"})])
        yield Say(calls=[("echo", {"text": "y"})])
        yield Say(calls=[("end", {"answer": "z"})])

    episode = await play_one(make_context(parts, script))
    assert [branch.reason for branch in episode.branches] == ["rewrite"] * 2
    assert episode.drift == []
    assert len(episode.leaves()) == 3
    assert trained_tokens(episode) == episode.sampled_tokens


@pytest.mark.parametrize("parallel", [False, True])
def test_calls_of_one_tool_run_in_order_unless_it_allows_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: bool
) -> None:
    monkeypatch.setattr(Bench, "parallel", parallel)

    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("note", {"text": "a", "wait": 10.0}), ("note", {"text": "b"}), ("hang", {})])
        yield Say(calls=[("end", {"answer": "z"})])

    turn = simulated(play_one(make_context(make_parts(tmp_path), script))).turns[0]
    # Which comes first is seen in the tool's own list; records and messages keep the order of the calls.
    assert [call.result for call in turn.calls[:2]] == (["ba", "b"] if parallel else ["a", "ab"])
    assert [call.outcome for call in turn.calls] == ["ok", "ok", "timeout"]
    assert [message["content"] for message in turn.observations] == [call.result for call in turn.calls]


class Lift(Tool):
    """Moves away under a model that goes on as before."""

    ends_replies = True
    floor = 0

    @tool
    async def look(self) -> str:
        """Where it is."""
        return f"floor {self.floor}"

    @tool
    async def ride(self, by: int) -> ToolResult:
        """Rides."""
        await asyncio.sleep(0)
        if not by:
            error = ToolError("the lift is stuck")
            error.ends_reply = True
            raise error
        self.floor += by
        return ToolResult(f"floor {self.floor}", ends_reply=True, rewards={"rode": 1.0})


class Wall(Tool):
    """Something that does not give way."""

    @tool
    async def push(self, by: int) -> ToolResult:
        """Pushes."""
        return ToolResult("It moves." if by > 1 else "Nothing happens.", executed=by > 1)


async def test_a_turn_tells_whether_its_calls_did_anything(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=[f"{__name__}:Wall", "tests.rollouts.world:Bench"])

    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("push", {"by": 2})])
        yield Say(calls=[("push", {"by": 2}), ("push", {"by": 1})])
        yield Say(calls=[("end", {"answer": "z"})])

    turns = (await play_one(make_context(parts, script))).turns
    assert [turn.executed for turn in turns] == [True, False, True]
    assert [call.outcome for call in turns[1].calls] == ["ok", "ok"]


@pytest.mark.parametrize("by", [2, 0])
async def test_calls_behind_one_that_ends_the_reply_are_skipped(tmp_path: Path, by: int) -> None:
    parts = make_parts(tmp_path, tools=["tests.rollouts.world:Bench", f"{__name__}:Lift"])

    def script(task: Any, rng: Any) -> Any:
        rides = [("look", {}), ("ride", {"by": by}), ("ride", {"by": by}), ("note", {"text": "x"})]
        yield Say(calls=rides)
        yield Say(calls=[("look", {}), ("note", {"text": "y"}), ("end", {"answer": "z"})])

    first, second = (await play_one(make_context(parts, script))).turns
    moved = ("ok", f"floor {by}") if by else ("error", "Error: the lift is stuck")
    why = "Not run: ride, called before it in the same reply, changed what it was meant for."
    assert [(call.outcome, call.result) for call in first.calls] == [
        ("ok", "floor 0"), moved, ("skipped", why), ("skipped", why)
    ]  # fmt: skip
    assert [message["content"] for message in first.observations] == [call.result for call in first.calls]
    assert first.rewards == ({"rode": 1.0} if by else {})
    # The calls of the next reply run again. None of the skipped calls had an effect.
    assert [call.result for call in second.calls] == [f"floor {by}", "y", ""]


async def test_a_record_survives_its_encoding(tmp_path: Path) -> None:
    episode = await play_one(make_context(make_parts(tmp_path), calls("echo", text="ü\x00<|im_end|>")))
    assert msgspec.json.decode(msgspec.json.encode(episode), type=Episode) == episode


async def test_a_call_in_another_format_is_told_and_counted(tmp_path: Path) -> None:
    heard: list[str] = []

    def script(task: Any, rng: Any) -> Any:
        observed = yield Say('[TOOL_CALLS]echo[ARGS]{"text": "x"}')
        heard.extend(message["content"] for message in observed)
        yield Say("done")

    episode = await play_one(make_context(make_parts(tmp_path), script))
    assert "that is a tool call in the format mistral" in heard[0]
    assert "<tool_call>" in heard[0]
    (call,) = episode.turns[0].calls
    assert (call.outcome, call.foreign, call.name) == ("malformed", "mistral", "")
    assert episode.answer == "done"
    assert summary([episode])["other_format/mistral"] == 1
