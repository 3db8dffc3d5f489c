"""Made-up questions: which are accepted, and the tasks that become of them."""

from __future__ import annotations

from pathlib import Path

from agentrl.agents.synthesis import UNTRIED
from agentrl.api.rollout import rollout
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.integrations import accepted

RECIPE = """\
name: made
tasks: {source: ./task.py:seeds}
agent: {use: synthesis_agent, evolve: [harder], tries: 1, max_turns: 8, format: hermes}
tools: [{search: {corpus: ./task.py:pages}}]
rewards: {accepted: {}}
policies: {solver: {script: solver}}
scripts: {makes: ./task.py:makes, solver: ./task.py:solver}
"""
TASK = """\
from agentrl import Say, Task

LAST = {
    "a": ("Where is the city of the tower?", "France"), "b": ("Where is Oslo?", "Norway"),
    "c": ("Is France it?", "France"), "d": ("Where is Paris?", "France"), "e": None,
}

def seeds():
    for name in LAST:
        yield Task.of(name, "Explore.", level=name)

def pages():
    yield {"id": "p", "title": "Paris", "text": "Paris is a city in France."}

def makes(task, rng):
    yield Say(calls=[("search", {"query": "paris"})])
    if LAST[task.id] is None:
        yield Say("I give up.")
        return
    yield Say(calls=[("propose", {"question": "Where is it?", "answer": "France"})])
    question, answer = LAST[task.id]
    yield Say(calls=[("propose", {"question": question, "answer": answer})])

def solver(task, rng, messages):
    yield Say("In France." if "Paris" in messages[-1]["content"] else "I do not know.")
"""


def test_good_questions_become_tasks(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "task.py").write_text(TASK)
    run = rollout(tmp_path, 5, script="makes", out=tmp_path / "run", reporters=())
    played = {episode.task.id: episode for episode in run.dir.episodes()}
    assert {name: episode.notes["accepted"] for name, episode in played.items()} == {
        "a": "accepted",
        "b": "no tool showed the answer",
        "c": "the question holds the answer",
        "d": "a model answers it without a search",
        "e": "no question was proposed",
    }
    assert {name: episode.reward for name, episode in played.items()} == {"a": 1.0, "b": 0, "c": 0, "d": 0, "e": 0}
    settings = TaskSettings(source="accepted", args={"run": "./run"})
    (task,) = load_tasks(settings, tmp_path, seed=0).tasks
    assert task.instruction == [{"role": "user", "content": "Where is the city of the tower?"}]
    assert task.data == {"level": "a", "answer": ["France"], "made_by": played["a"].id}


def test_a_question_that_nobody_could_try_is_not_accepted(tmp_path: Path) -> None:
    """The last turn of the episode is its last proposal: none is left for the solver."""
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("max_turns: 8", "max_turns: 3"))
    (tmp_path / "task.py").write_text(TASK)
    run = rollout(tmp_path, 5, script="makes", out=tmp_path / "run", reporters=())
    played = {episode.task.id: episode for episode in run.dir.episodes()}
    assert {played[name].notes["accepted"] for name in "ad"} == {UNTRIED}
    assert {episode.reward for episode in played.values()} == {0}
    assert not list(accepted.tasks("./run", tmp_path))
