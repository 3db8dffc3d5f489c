"""The tool `judge`, and the reward that reads its calls."""

from __future__ import annotations

from pathlib import Path

from agentrl.api.rollout import rollout
from agentrl.rewards.functions.reseek import evidence_judgement
from agentrl.types.task import Task
from tests.rewards.make import call, make_episode, turn

RECIPE = """\
name: judged
tasks: {source: ./task.py:tasks}
agent: {max_turns: 5, format: hermes}
tools: [search: {corpus: ./task.py:corpus, k: 1}, judge, answer]
rewards: {exact_match: {}, evidence_judgement: {weight: 0.5}}
scripts: {careful: ./task.py:careful}
"""
SCRIPT = """\
from agentrl import Say, Task

def tasks():
    yield Task.of("whale", "Which animal is the largest?", answer="blue whale")

def corpus():
    yield {"id": "1", "title": "Animals", "text": "The blue whale is the largest animal."}

def careful(task, rng):
    yield Say(calls=[("search", {"query": "largest animal"})])
    yield Say(calls=[("judge", {"useful": True})])
    yield Say(calls=[("judge", {"useful": False})])
    yield Say(calls=[("answer", {"text": "blue whale"})])
"""


def test_a_recipe_judges_what_it_finds_and_only_that(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "task.py").write_text(SCRIPT)
    run = rollout(tmp_path, 1, script="careful", out=tmp_path / "run", reporters=())
    (episode,) = run.dir.episodes()
    assert episode.error is None
    assert [each.calls[0].outcome for each in episode.turns] == ["ok"] * 4
    assert [each.rewards.get("evidence_judgement") for each in episode.turns] == [None, 0.3, None, None]


async def test_a_call_counts_before_words_and_a_malformed_one_does_not() -> None:
    def judged(useful: object, outcome: str = "ok"):  # type: ignore[no-untyped-def]
        return call("judge", outcome=outcome, useful=useful)

    found = call(name="search", result="a blue whale")
    turns = [
        turn(found),
        turn(judged(False), found, text="<judge>yes</judge>"),  # rejects the useful, then searches again
        turn(judged("perhaps", "error"), text="<judge>yes</judge>"),
    ]
    episode = make_episode(Task.of("t", "", answer="blue whale"), *turns)
    assert await evidence_judgement(episode.task, episode) == [None, -0.3, 0.3]
