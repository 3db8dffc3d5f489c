"""Whatever tools, agents, tasks and rewards hand in is recorded, or is that episode's error; the run goes on."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.engines.scripted import Say
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.store import RunDir, check
from agentrl.tools.base import Tool, ToolResult, tool
from agentrl.types import values
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError, TaskError
from agentrl.types.task import Task
from tests.rollouts.world import collect, make_context, make_parts, play_one

torch = pytest.importorskip("torch")


def cyclic() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


class Mute:
    """Cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


ODD: dict[str, Any] = {
    "text": "x",
    "none": None,
    "bool": True,
    "int": 42,
    "large": 10**30,
    "huge": 10**5000,
    "nan": float("nan"),
    "infinite": float("-inf"),
    "numpy": np.float32(0.5),
    "numpy_bool": np.bool_(True),
    "torch": torch.tensor(0.5, requires_grad=True),
    "array": np.arange(3.0),
    "bytes": b"caf\xe9",
    "surrogate": "caf\udce9",
    "set": {1, 2},
    "object": object(),
    "mute": Mute(),
    "cycle": cyclic(),
    "deep": nested(5000),
}
NUMBERS = {"bool", "int", "large", "numpy", "numpy_bool", "torch"}
UNSPEAKABLE = {"cycle", "deep", "huge", "mute"}


class Odd(Tool):
    """Hands in the value that the task names, in the place that it names."""

    async def open(self, task: Task, sandbox: Any) -> None:
        self.place, self.value = task.data["place"], ODD[task.data["value"]]

    def state_key(self) -> Any:
        return self.value if self.place == "state_key" else None

    @tool
    async def act(self) -> ToolResult:
        """Acts."""
        if self.place == "tool_answer":
            return ToolResult("", done=True, answer=self.value)
        if self.place == "tool_reward":
            return ToolResult("", rewards={"won": self.value})
        if self.place == "tool_rewards":
            return ToolResult("", rewards=self.value)
        return ToolResult(self.value) if self.place == "tool_result" else self.value


class Hands(Agent):
    """Likewise."""

    def opening(self, session: Any, system: str | None) -> Any:
        if session.task.data["place"] == "opening":
            return ODD[session.task.data["value"]]
        return super().opening(session, system)

    async def run(self, session: Any) -> None:
        place, value = session.task.data["place"], ODD[session.task.data["value"]]
        reply = await session.generate(agent=value if place == "role" else "agent")
        await session.run_tools(reply)
        if place == "say":
            session.say(value)
        if place == "rewrite":
            session.rewrite([{"role": "user", "content": value}])
        if place == "reward":
            session.reward(won=value)
        if session.outcome is None:
            await session.generate()
            session.finish("answer", value if place == "finish" else "bye")


def scored(task: Task) -> Any:
    return ODD[task.data["value"]] if task.data["place"] == "score" else 1.0


def play(task: Task, rng: Any) -> Any:
    yield Say(calls=[("act", {})])
    yield Say("bye")


@pytest.mark.parametrize(
    ("place", "refused", "named"),
    [
        ("tool_result", set(), ""),
        ("tool_text", set(), ""),
        ("tool_answer", set(), ""),
        ("tool_reward", set(ODD) - NUMBERS, "tool 'act' ({file}:{line}): reward 'won' is "),
        ("tool_rewards", set(ODD) - {"none"}, "tool 'act' ({file}:{line}): rewards are "),
        ("state_key", {"nan", "infinite", "array", "set", "object"} | UNSPEAKABLE, "Odd: state_key() returned "),
        ("opening", set(ODD), "the opening is "),
        ("role", UNSPEAKABLE, ""),
        ("say", UNSPEAKABLE, ""),
        ("rewrite", UNSPEAKABLE, ""),
        ("finish", UNSPEAKABLE, ""),
        ("reward", set(ODD) - NUMBERS, "session.reward: reward 'won' is "),
        ("score", set(ODD) - NUMBERS - {"none"}, "reward component 'scored' ("),
    ],
)
async def test_what_cannot_be_recorded_ends_its_episode_and_no_other(
    tmp_path: Path, place: str, refused: set[str], named: str
) -> None:
    here = "tests.rollouts.test_values"
    parts = make_parts(
        tmp_path,
        tools=[f"{here}:Odd"],
        agent={"use": f"{here}:Hands"},
        rewards={"scored": f"{here}:scored"},
        credit="gigpo",
    )
    tasks = [Task.of(name, "Go.", place=place, value=name) for name in ODD]
    found: dict[str, Episode] = {}
    with RunDir.create(tmp_path / "run") as run:
        context = make_context(parts, play, put_blob=run.put_blob)
        specs = [EpisodeSpec(task.id, task.id, task) for task in tasks]
        for episode in await collect(context, specs, concurrency=4, run=run):
            found[episode.id] = run.get(episode.id)
            assert msgspec.to_builtins(found[episode.id]) == msgspec.to_builtins(episode)
        assert {failure["episode"] for failure in run.failures()} == refused
    assert check(tmp_path / "run").ok
    assert {id for id, episode in found.items() if episode.status != "done"} == refused
    named = named.format(file=__file__, line=Odd.act.__code__.co_firstlineno)
    for id in refused:
        error = found[id].error
        assert error is not None
        assert found[id].status == "user_error"
        assert named in error.message
        assert named or error.place.startswith(__file__), "the user's own line"


@pytest.mark.parametrize("value", [True, 1, Fraction(1), np.float64(1), np.int8(1), np.array(1.0), torch.tensor(1)])
def test_every_real_number_is_a_reward(value: Any) -> None:
    found = values.number(value, "it")
    assert (type(found), found) == (float, 1.0)


async def test_what_a_tool_ends_with_is_text_when_it_is_stored(tmp_path: Path) -> None:
    """An answer of 42 was stored as a number, and the run could not be read again."""
    assert [ToolResult("", answer=value).answer for value in (42, True, None, b"x", {"a": 1})] == [
        "42", "True", None, "x", '{"a": 1}'
    ]  # fmt: skip
    assert [ToolResult(value).text for value in (5, None, [1, "é"], "caf\udce9")] == ["5", "", '[1, "é"]', "caf?"]


GOLD = dataclasses.make_dataclass("Gold", ["x"])


@pytest.mark.parametrize(
    ("value", "where", "remedy"),
    [
        (np.arange(3), "data.gold[0] is array([0, 1, 2]) (ndarray)", "value.tolist()"),
        (np.int64(3), "data.gold[0] is", "value.tolist()"),
        (torch.ones(2), "data.gold[0] is tensor([1., 1.]) (Tensor)", "value.tolist()"),
        (GOLD(3), "data.gold[0] is Gold(x=3) (Gold)", "dataclasses.asdict(value)"),
        ({1, 2}, "data.gold[0] is {1, 2} (set)", "sorted(value)"),
        (PurePosixPath("/x"), "data.gold[0] is PurePosixPath('/x')", "str(value)"),
        (float("nan"), "data.gold[0] is nan (float)", "null, where there is no number"),
        (b"x", "data.gold[0] is b'x' (bytes)", "value.decode()"),
        ({1: "a"}, "data.gold[0] has the key 1 (int)", "str(key)"),
        (10**5000, "data.gold[0] is a value (int)", "str(value)"),
        (object, "data.gold[0] is <class 'object'> (type)", "numbers, strings, lists and dicts"),
        (cyclic(), "data.gold[0][0]... is nested more than 100 levels deep, or holds itself", "make it flat"),
        (nested(5000), "is nested more than 100 levels deep", "make it flat"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_task_data_that_is_no_json_is_refused_when_the_task_is_made(value: Any, where: str, remedy: str) -> None:
    with pytest.raises(TaskError) as refused:
        Task.of("t7", "Go.", gold=[value])
    assert str(refused.value).startswith("task 't7': ")
    assert where in str(refused.value)
    assert remedy in str(refused.value)


def test_task_data_is_what_will_be_read_from_its_record() -> None:
    given = {"a": (1, 2.5, None, True), "b": [{"c": "caf\udce9", "d": 10**30}], "e": np.float64(0.5)}
    data = Task.of("t", "Go.", **given).data
    assert data == {"a": [1, 2.5, None, True], "b": [{"c": "caf?", "d": 10**30}], "e": 0.5}
    assert msgspec.json.decode(msgspec.json.encode(data)) == data
    assert Task.of(7, "Go.").id == "7"  # type: ignore[arg-type]
    given["b"].append("later")
    assert len(data["b"]) == 1


@pytest.mark.parametrize("instruction", [None, 5, ["Go."], [{"content": "Go."}], [{"role": 1, "content": "Go."}]])
def test_an_instruction_that_is_no_conversation_is_refused(instruction: Any) -> None:
    with pytest.raises(TaskError, match=r"task 't': .*instruction"):
        Task.of("t", instruction)


def test_a_seed_that_is_no_number_is_refused() -> None:
    with pytest.raises(TaskError, match="task 't': seed is 'abc'"):
        Task.of("t", "Go.", seed="abc")


class Greedy(Tool):
    """Takes what it needs out of the task's data."""

    async def open(self, task: Task, sandbox: Any) -> None:
        self.items = task.data["items"]

    @tool
    async def take(self) -> str:
        """Takes one."""
        return str(self.items.pop())


async def test_what_a_tool_does_to_its_task_stays_in_its_episode(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, tools=["tests.rollouts.test_values:Greedy"])
    task = Task.of("t", "Go.", items=[1, 2, 3])

    def script(task: Task, rng: Any) -> Any:
        yield Say(calls=[("take", {})])

    specs = [EpisodeSpec(f"g#{k}", "g", task) for k in range(3)]
    episodes = await collect(make_context(parts, script), specs)
    assert [episode.turns[0].calls[0].result for episode in episodes] == ["3"] * 3
    assert [episode.task.data for episode in episodes] == [{"items": [1, 2, 3]}] * 3


MEDDLING = """
def meddle(task, episode):
    turn = episode.turns[0]
    turn.calls[0].arguments["text"] = "another"
    turn.rewards["won"] = 9.0
    turn.observations.clear()
    episode.nodes[-1].token_ids.clear()
    episode.nodes.pop()
    episode.turns.clear()
    episode.task.data["answer"] = task.data["answer"] = "wrong"
    return 1.0

def judge(task, episode):
    return float(task.data["answer"] == episode.task.data["answer"] == episode.answer and len(episode.turns) == 2)
"""


async def test_what_a_reward_does_to_its_episode_stays_there(tmp_path: Path) -> None:
    """Else it would change what is trained: the others' view of it, the record, the task of the whole group."""
    (tmp_path / "rewards.py").write_text(MEDDLING)

    def script(task: Task, rng: Any) -> Any:
        yield Say(calls=[("echo", {"text": "hello"})])
        yield Say(calls=[("end", {"answer": task.data["answer"]})])

    def told(episode: Episode) -> Any:
        turns = [(t.calls[0].arguments, t.calls[0].result, t.rewards, t.observations) for t in episode.turns]
        return episode.task, episode.nodes, turns, episode.answer

    rewards = {name: f"./rewards.py:{name}" for name in ("meddle", "judge")}
    left = await play_one(make_context(make_parts(tmp_path), script))
    meddled = await play_one(make_context(make_parts(tmp_path, rewards=rewards), script))
    assert meddled.components == {"meddle": 1.0, "judge": 1.0}
    assert told(meddled) == told(left)


async def test_a_record_that_cannot_be_stored_is_a_user_error_whatever_made_it_so(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": "tests.rollouts.test_values:Forger"})
    unchecked = Task(id="t", instruction=[{"role": "user", "content": "Go."}], data={"x": object()})
    specs = [EpisodeSpec("a", "g", Task.of("t", "Go.")), EpisodeSpec("b", "g", unchecked)]
    with RunDir.create(tmp_path / "run") as run:
        await collect(make_context(parts, play), specs, run=run)
        stored = [run.get(id) for id in ("a", "b")]
    assert [(e.status, e.reward, e.turns) for e in stored] == [("user_error", None, [])] * 2
    assert [e.error.kind for e in stored if e.error] == ["StoreError"] * 2
    assert stored[0].error is not None
    assert "Expected `str`, got `int` - at `$.turns[0].text`" in stored[0].error.message
    assert check(tmp_path / "run").ok


class Forger(Agent):
    """Writes into the record behind the session's back."""

    async def run(self, session: Any) -> None:
        await session.generate()
        session.turns[0].text = 5
        session.finish()


def test_recipe_check_sees_data_that_is_no_json(tmp_path: Path) -> None:
    from agentrl.api.recipe_check import check as recipe_check

    (tmp_path / "task.py").write_text(
        "import numpy as np\nfrom agentrl import Task\n\ndef tasks():\n    yield Task.of('t', 'Go.', gold=np.ones(2))\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"q": "a"}\n{"q": "b", "x": [NaN]}\n')
    (tmp_path / "recipe.yaml").write_text("name: b\ntasks: ./task.py:tasks\n")
    with pytest.raises(TaskError, match=r"task 't': data.gold is array"):
        recipe_check(str(tmp_path), [])
    (tmp_path / "recipe.yaml").write_text("name: b\ntasks: {jsonl: rows.jsonl, prompt: '{q}'}\n")
    with pytest.raises((TaskError, RecipeError), match=r"rows.jsonl:2: data.x\[0\] is nan"):
        recipe_check(str(tmp_path), [])


def test_a_failure_s_line_takes_any_text(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        run.add_failure({"message": "caf\udce9", "at\udce9": [np.float32(0.5), float("nan")]})
        (line,) = run.failures()
    assert (line["message"], line["at?"]) == ("caf?", [0.5, None])
    assert json.loads((tmp_path / "run" / "failures.jsonl").read_text())


class Wordless(Exception):
    """Its message cannot be made."""

    def __str__(self) -> str:
        raise KeyError("text")


class Throws(Agent):
    """Raises what the task names."""

    async def run(self, session: Any) -> None:
        raise {"wordless": Wordless(), "surrogate": ValueError("caf\udce9"), "long": ValueError("x" * 10**7)}[
            session.task.id
        ]


async def test_an_exception_whose_text_is_odd_is_one_episode_s_error(tmp_path: Path) -> None:
    parts = make_parts(tmp_path, agent={"use": "tests.rollouts.test_values:Throws"})
    specs = [EpisodeSpec(id, id, Task.of(id, "Go.")) for id in ("wordless", "surrogate", "long")]
    with RunDir.create(tmp_path / "run") as run:
        await collect(make_context(parts, play), specs, run=run)
        messages = [failure["message"] for failure in run.failures()]
    assert messages == ["(its message cannot be read: KeyError)", "caf?", "x" * 8000]


@pytest.mark.parametrize("given", [1, (1,), (1, 2, 3), "ab", (1, float("nan")), (1, None)])
def test_a_point_is_a_pair_of_numbers(given: Any) -> None:
    assert ToolResult("", points=[(np.float32(0.5), 2)]).points == ((0.5, 2.0),)
    with pytest.raises(values.ValueRefused, match="point"):
        ToolResult("", points=[given])
