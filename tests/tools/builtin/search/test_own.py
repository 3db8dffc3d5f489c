"""Self-search (SSRL): the policy answers its own queries, in one key's exchange for any other engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.store import check
from agentrl.tools.builtin.search.tool import Search
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from agentrl.types.sample import training_samples
from agentrl.types.task import Task

RECIPE = """\
name: own
tasks: {source: ./task.py:tasks}
agent: {max_turns: 8, format: hermes}
tools: [{search: {corpus: ./task.py:corpus, engine: self}}]
rewards: {exact_match: {}}
scripts: {asks: ./task.py:asks, twice: ./task.py:twice, silent: ./task.py:silent}
"""
SCRIPTS = """\
from agentrl import Say, Task

def tasks():
    for k in range(2):
        yield Task.of(f"t{k}", "Where is Paris?", answer="France")

def corpus():
    yield {"id": "p", "title": "Paris", "text": "Paris is a city in Italy."}

def knows(messages):
    assert "paris" in messages[-1]["content"]
    assert messages[0]["content"] == "Where is Paris?"
    yield Say("<information>Paris is a city in France.</information>")

def asks(task, rng, messages, context):
    if context != "main":
        yield from knows(messages)
        return
    heard = yield Say(calls=[("search", {"query": "paris"})])
    yield Say(heard[-1]["content"].rstrip(".").rpartition(" ")[2])

def twice(task, rng, messages, context):
    if context != "main":
        yield from knows(messages)
        return
    heard = yield Say(calls=[("search", {"query": "paris"}), ("search", {"query": "paris now"})])
    heard = yield Say(calls=[("fetch", {"id": "self2"})])
    yield Say(heard[-1]["content"].rstrip(".").rpartition(" ")[2])

def silent(task, rng, messages, context):
    if context == "main":
        heard = yield Say(calls=[("search", {"query": "paris"})])
        yield Say(heard[-1]["content"])
"""


def played(folder: Path, script: str = "asks", **overrides: Any) -> list[Episode]:
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "task.py").write_text(SCRIPTS)
    run = rollout(folder, 2, script=script, out=folder / "run", overrides=overrides, reporters=())
    assert check(folder / "run").ok
    return list(run.dir.episodes())


def test_the_policy_answers_its_query_and_does_not_train_on_it(tmp_path: Path) -> None:
    for episode in played(tmp_path):
        assert (episode.status, episode.reward) == ("done", 1.0)
        assert [turn.context for turn in episode.turns] == ["main", "search-1", "main"]
        assert episode.turns[0].observations[0]["content"] == "[self1] paris\nParis is a city in France."
        assert episode.contexts["search-1"].policy == "self"
        answered = episode.nodes[episode.turns[1].node]
        assert answered.kind == "spoken"  # its tokens are there, and behind the mask
        assert len(answered.token_ids) == len(answered.logprobs or []) > 5
        assert [turn.index for turn in episode.own_turns] == [0, 2]
        (row,) = training_samples(episode, [1.0] * 3)
        assert [turn for turn, _, _ in row.turn_spans] == [0, 2]


def test_without_the_mask_its_answer_trains_as_a_role(tmp_path: Path) -> None:
    for episode in played(tmp_path, **{"tools.0.mask": False}):
        assert episode.contexts["search-1"].policy == "policy"
        assert [turn.agent for turn in episode.own_turns] == ["agent", "search", "agent"]
        rows = training_samples(episode, [1.0] * 3)
        assert sorted(turn for row in rows for turn, _, _ in row.turn_spans) == [0, 1, 2]


def test_another_engine_takes_its_place_by_one_key(tmp_path: Path) -> None:
    for episode in played(tmp_path, **{"tools.0.engine": "index"}):
        assert episode.turns[0].observations[0]["content"] == "[p] Paris\nParis is a city in Italy."
        assert (episode.contexts, episode.reward) == ({}, 0.0)


def test_two_queries_of_one_reply_are_answered_side_by_side(tmp_path: Path) -> None:
    for episode in played(tmp_path, "twice"):
        assert [turn.context for turn in episode.turns] == ["main", "search-1", "search-2", "main", "main"]
        assert episode.reward == 1.0


def test_a_policy_that_writes_nothing_finds_nothing(tmp_path: Path) -> None:
    for episode in played(tmp_path, "silent"):
        assert episode.turns[0].calls[0].outcome == "error"
        assert "you wrote nothing" in (episode.answer or "")


def test_its_answers_count_as_turns_of_the_episode(tmp_path: Path) -> None:
    for episode in played(tmp_path, **{"agent.max_turns": 1}):
        assert (episode.status, episode.stop) == ("truncated", "turns")


async def test_it_needs_a_policy(tmp_path: Path) -> None:
    tool = Search(engine="self")
    await tool.open(Task.of("t", "?"), None)
    with pytest.raises(RecipeError, match="needs a policy"):
        await tool.search("paris")
