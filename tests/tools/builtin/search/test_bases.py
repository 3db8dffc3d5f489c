"""Several bases, of which the policy names one for each query; the rewards of its choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.rewards.functions.retrieval import answer_recall, base_routing
from agentrl.store import check
from agentrl.tools.builtin.search.bases import Bases
from agentrl.tools.methods import methods_of
from agentrl.types.errors import RecipeError, TaskError, ToolError
from agentrl.types.task import Task
from tests.command import agentrl
from tests.rewards.make import call, make_episode, turn

PEOPLE = [{"id": "1", "title": "Ada", "text": "Ada was a mathematician."}]
PLACES = [
    {"id": "1", "title": "Oslo", "text": "Oslo is a city."},
    {"id": "2", "title": "Ada", "text": "Ada is a town."},
]
OF = {"people": {"corpus": PEOPLE, "about": "who people were"}, "places": {"corpus": PLACES, "k": 1}}


async def opened(of: dict[str, Any]) -> Bases:
    tool = Bases(of)
    await tool.open(Task.of("t", "?"), None)
    return tool


async def test_a_query_goes_to_the_base_that_is_named() -> None:
    tool = await opened(OF)
    search, fetch = methods_of(tool)
    schema = search.definition()["function"]["parameters"]["properties"]["base"]
    assert (schema["enum"], schema["description"]) == (
        ["people", "places"],
        "Where to search. people: who people were; places",
    )
    empty = tool.state_key()
    assert (await search.call({"query": "ada", "base": "people"})).text == "[people/1] Ada\nAda was a mathematician."
    once = tool.state_key()
    assert (await search.call({"query": "ada", "base": "places"})).text == "[places/2] Ada\nAda is a town."
    assert len({empty, once, tool.state_key()}) == 3
    assert (await fetch.call({"id": "[places/1]"})).text == "[places/1] Oslo\nOslo is a city."
    for wrong in ("1", "people/9", "plants/1"):
        with pytest.raises(ToolError, match="no document with the id"):
            await fetch.call({"id": wrong})
    with pytest.raises(ToolError, match="base.*people"):
        await search.call({"query": "ada", "base": "plants"})
    with pytest.raises(ToolError, match="no word"):
        await search.call({"query": "!", "base": "people"})


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ({}, "no bases"),
        ({"a/b": {"corpus": PEOPLE}}, "can be called 'a/b'"),
        ({"a": {"engine": "server"}}, "engine server needs url"),
        ({"a": {"corpse": PEOPLE}}, "no setting 'corpse'"),
        ({"a": {"corpus": PEOPLE, "k": "many"}}, "of.a.k"),
    ],
)
def test_settings_are_checked(of: Any, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        Bases(of)


RECIPE = """\
name: routed
tasks: {source: ./task.py:tasks}
agent: {max_turns: 6, format: hermes}
tools: [{bases: {of: {people: {corpus: ./people.jsonl}, places: {corpus: ./places.jsonl}, mine: {engine: self}}}}]
rewards: {answer_recall: {}, base_routing: {scorer: ./task.py:same}}
credit: {use: step_grpo}
scripts: {asks: ./task.py:asks}
"""
SCRIPTS = """\
from agentrl import Say, Task

def tasks():
    for k in range(2):
        yield Task.of(f"t{k}", "What was Ada?", answer="a mathematician", steps=[{"query": "ada", "base": "people"}])

def same(query, gold):
    return float(query == gold)

def asks(task, rng, context):
    if context != "main":
        yield Say("Ada is a name.")
        return
    yield Say(calls=[("search", {"query": "ada", "base": "mine"})])
    yield Say(calls=[("search", {"query": "ada", "base": "people"})])
    yield Say("She was a mathematician.")
"""


@pytest.mark.slow
def test_a_recipe_rewards_its_steps(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "task.py").write_text(SCRIPTS)
    (tmp_path / "people.jsonl").write_text('{"id": "1", "title": "Ada", "text": "Ada was a mathematician."}\n')
    (tmp_path / "places.jsonl").write_text('{"id": "1", "title": "Oslo", "text": "Oslo is a city."}\n')
    agentrl("recipe", "check", ".", cwd=tmp_path)
    assert agentrl("search", "build", ".", cwd=tmp_path).stdout.count("1 documents, by bm25") == 2
    run = rollout(tmp_path, 2, script="asks", out=tmp_path / "run", reporters=())
    assert check(tmp_path / "run").ok
    for episode in run.dir.episodes():
        assert [turn.context for turn in episode.turns] == ["main", "search-1", "main", "main"]
        # A right query of a wrong base; one more than gold has; the end, where gold has ended.
        assert [turn.rewards["base_routing"] for turn in episode.turns] == [0.5, None, 0.0, 1.0]
        assert episode.components["answer_recall"] == 1.0


def asked(base: str, query: str = "q", **fields: Any) -> Any:
    return call("search", query=query, base=base, **fields)


async def test_the_steps_are_scored_as_the_authors_score_them() -> None:
    def alike(query: str, gold: str) -> float:
        return {("p", "first"): 0.4, ("none", "second"): 0.1, ("extra", "none"): 0.2}[query, gold]

    task = Task.of("t", "", steps=[{"query": "First", "base": "a"}, {"query": "second", "base": "b"}])

    async def scored(*turns: Any, answer: str | None = None) -> list[float | None]:
        found = await base_routing(task, make_episode(task, *turns, answer=answer), scorer=alike)
        return [None if each is None else pytest.approx(each) for each in found]

    assert await scored(turn(asked("a", "P")), turn(asked("a", "second"))) == [0.7, 0.5]
    assert await scored(turn(asked("a", "First"), asked("b", "x")), turn(text="done"), answer="done") == [0.5, 0.05]
    other = turn(call("fetch", id="a/1"))
    right = [turn(asked("a", "first")), other, turn(asked("b", "second"))]
    assert await scored(*right, turn(text="done"), answer="done") == [1.0, None, 1.0, 1.0]
    assert await scored(*right, turn(asked("a", "extra"))) == [1.0, None, 1.0, 0.1]
    unread = turn(call("search", outcome="malformed"))
    assert await scored(unread, turn(asked("b", "second"))) == [0.0, 1.0]
    for wrong in ({}, {"steps": "a"}, {"steps": [{"query": "q"}]}):
        with pytest.raises(TaskError, match="gold steps"):
            await base_routing(Task.of("t", "", **wrong), make_episode(task, turn()))


@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        ("blue whale", "The blue whale.", 1.0),
        ("blue whale", "a whale", 0.0),
        ("blue whale", None, 0.0),
        (["whale", "blue whale"], "whale", 1.0),
        (["blue whale", "great white shark"], "white shark", 0.0),
        ("one two three four five six", "one two three", 0.5),
        (["one two three four five six", "x"], "one two three", 0.0),
    ],
)
def test_the_answer_is_scored_as_the_authors_score_it(gold: Any, answer: str | None, value: float) -> None:
    task = Task.of("t", "", answer=gold)
    assert answer_recall(task, make_episode(task, turn(), answer=answer)) == value
