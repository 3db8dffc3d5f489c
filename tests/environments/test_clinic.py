"""recipes/clinic: patients answer what their report says, every disease can be told, and records show it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl import Episode, Say, Task
from agentrl.registry.references import load_object
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import ToolError

RECIPE = Path(__file__).parents[2] / "recipes" / "clinic"
HERE = "tests.environments.test_clinic"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)
said: list[str] = []
"""What the doctor of a test says."""


def doctor(task: Task, rng: Any) -> Any:
    """Says what the test wrote."""
    for text in said:
        yield Say(text)


def consulted(folder: Path, *texts: str, **settings: Any) -> Episode:
    """The consultation of the first patient, in which the doctor says this."""
    said[:] = texts
    overrides = [f"scripts.doctor={HERE}:doctor", *(f"agent.{name}={value}" for name, value in settings.items())]
    agentrl.rollout(str(RECIPE), 1, script="doctor", overrides=overrides, out=folder, reporters=())
    (found,) = RunDir.read(folder).episodes()
    return found


def first_patient() -> Task:
    found: Task = next(iter(load("./task.py:patients")()))
    return found


def test_each_turn_of_a_consultation_is_of_a_kind(tmp_path: Path) -> None:
    own = first_patient().data
    symptom = own["symptoms"][0]
    found = consulted(
        tmp_path / "run",
        f"Do you have {symptom}?",
        f"Have you {symptom}?",
        "Why?",
        "Why?",
        "Hm.",
        f"Do you have {symptom} or tremor? And now?",
        f"What does the {own['test']} test show?",
        f"Diagnosis: {own['disease']}. Recommendation: {own['treatment']}.",
    )
    kinds = ["answered", "repeated", "unknown", "repeated", "several", "several", "answered", "diagnosis"]
    assert found.info["acts"] == kinds
    assert found.reward == 1.0
    heard = [turn.observations[-1]["content"] for turn in found.turns if turn.context == "main" and turn.observations]
    assert heard[0] == f"Yes, I have {symptom}.\nTurn 1/8."
    assert heard[-1] == f"The {own['test']} test is {own['result']}.\nTurn 7/8."


def test_the_last_turn_must_name_a_diagnosis(tmp_path: Path) -> None:
    found = consulted(tmp_path / "run", "Do you have rash?", "Do you have fever?", "Do you have chills?", turns=2)
    assert found.info["acts"] == ["answered", "late"]
    assert (found.answer, found.reward) == ("", 0.0)
    drawn = consulted(tmp_path / "drawn", "Diagnosis: x", turns="[3, 3]")
    assert drawn.info["turns"] == 3


def test_tags_are_needed_where_the_recipe_says_so(tmp_path: Path) -> None:
    found = consulted(
        tmp_path / "run",
        "Do you have rash?",
        "<think>a</think><answer>Do you have rash?</answer> so",
        "<think>a</think><answer>Do you have rash?</answer>",
        "<think>a</think><answer>Diagnosis: gout</answer>",
        tagged="true",
    )
    assert found.info["acts"] == ["form", "form", "answered", "diagnosis"]
    assert found.answer == "Diagnosis: gout"


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        ("Do you have fever?", "Yes, I have fever."),
        ("Do you have chills?", "No, I have no chills."),
        ("What does the blood test show?", "The blood test is high."),
        ("What does the urine test show?", "The urine test is normal."),
        ("How old are you?", "Sorry, I cannot answer that."),
    ],
)
def test_a_patient_answers_what_the_report_says(question: str, reply: str) -> None:
    assert load("./task.py:answer")(["fever", "rash"], "blood", "high", question) == reply


def test_only_the_test_tells_a_disease_from_its_twin() -> None:
    diseases = load("./world.py:clinic")().diseases
    assert len(diseases) == 48
    for each in diseases.values():
        twin = diseases[each.twin]
        assert (each.symptoms, each.test, each.name) == (twin.symptoms, twin.test, twin.twin)
        assert {each.result, twin.result} == {"high", "low"}
        assert all(len({*each.symptoms} & {*d.symptoms}) <= 3 for d in diseases.values() if d not in (each, twin))
    assert load("./world.py:clinic")(8).diseases.keys() != diseases.keys()


def test_the_guidelines_hold_the_disease_and_its_twin() -> None:
    for task in load("./task.py:patients")(n=40, choices=4):
        own = load("./world.py:clinic")().diseases[task.data["disease"]]
        assert {own.name, own.twin} <= {*task.data["choices"]}
        assert len(set(task.data["choices"])) == 4
        asked = str(task.instruction[-1]["content"])
        assert own.guideline in asked
        assert task.data["report"] not in asked


@pytest.mark.parametrize("source", ["patients", "cases"])
def test_the_splits_share_no_task(source: str) -> None:
    tasks = load(f"./task.py:{source}")
    train, held_out = ({str(task.instruction) for task in tasks(n=300, held_out=side)} for side in (False, True))
    assert not train & held_out
    assert [task.id for task in tasks(n=24)] == [task.id for task in tasks(n=48)][:24]


async def test_records_and_guidelines_are_looked_up() -> None:
    records = load("./task.py:Records")(k=2)
    await records.open(next(iter(load("./task.py:cases")())), None)
    record = load("./world.py:clinic")().records[0]
    lines = records.match(", ".join(record.symptoms)).split("\n")
    assert lines[0] == str(record)
    assert len(lines) == 2
    guideline = load("./world.py:clinic")().diseases[record.disease].guideline
    assert records.lookup(f"nobody, {record.disease.upper()}") == guideline
    with pytest.raises(ToolError, match="as records show them"):
        records.lookup("nobody")
    with pytest.raises(ToolError, match="as they are written"):
        records.match("gloom")


@pytest.mark.parametrize("recipe", ["recipe.yaml", "records.yaml"])
def test_the_oracle_finds_every_disease_and_chance_few(recipe: str, tmp_path: Path) -> None:
    rewards = {}
    for script in ("oracle", "random"):
        agentrl.rollout(str(RECIPE / recipe), 48, script=script, out=tmp_path / script, reporters=())
        rewards[script] = [row.reward for row in RunDir.read(tmp_path / script).rows()]
    assert rewards["oracle"] == [1.0] * 48
    assert sum(map(bool, rewards["random"])) < 16
