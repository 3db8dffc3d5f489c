"""The built-in reward components."""

from __future__ import annotations

import pytest

from agentrl.rewards.functions.verifiers import exact_match, f1, format, numeric, tool_success
from agentrl.rewards.registry import REWARDS
from agentrl.types.episode import CallRecord, Episode, Turn
from agentrl.types.errors import TaskError
from agentrl.types.task import Task


def played(answer: str | None, *turns: list[str]) -> Episode:
    """An episode whose turns made calls with these outcomes."""
    records = [
        Turn(
            index=index,
            node=0,
            text="",
            finish="stop",
            calls=[
                CallRecord(id="", name="x", arguments={}, outcome=outcome, result="", duration_s=0.0)
                for outcome in outcomes
            ],
        )
        for index, outcomes in enumerate(turns)
    ]
    return Episode(id="e", group_id="g", task=Task.of("t", ""), status="done", turns=records, answer=answer)


@pytest.mark.parametrize(("answer", "gold", "same", "overlap"), [
    ("The Eiffel Tower!", "eiffel tower", 1, 1),
    ("Eiffel  tower in Paris", "the Eiffel Tower", 0, 2 * 2 / (4 + 2)),
    ("tower tower", "tower", 0, 2 * 1 / (2 + 1)),
    ("Lyon", ["Paris", "lyon."], 1, 1),
    ("Berlin", ["Paris", "Lyon"], 0, 0),
    ("the", "a", 0, 0),
    ("The", "the", 1, 1),
    ("+", "-", 0, 0),
    ("", "Paris", 0, 0),
    (None, "Paris", 0, 0),
    ("42", 42, 1, 1),
])  # fmt: skip
def test_text(answer, gold, same, overlap):
    task = Task.of("t", "", answer=gold)
    assert exact_match(task, played(answer)) == same
    assert f1(task, played(answer)) == pytest.approx(overlap)


@pytest.mark.parametrize(("answer", "gold", "right"), [
    ("The total is 1,234.50 dollars.", "1234.5", True),
    ("first 7, then 12", 12, True),
    ("first 12, then 7", 12, False),
    ("3/4", "0.75", True),
    (r"so \boxed{\frac{3}{4}}", "3/4", True),
    ("It is 50%", "0.5", True),
    ("It is 50 %.", "50", True),
    ("0.5", "50%", True),
    ("5", "50%", False),
    ("50%", r"50\%", True),
    ("100%", "1%", False),
    ("0.5%", "50%", False),
    ("x = -3", -3, True),
    ("x = \u22123", -3, True),
    ("pages 10-12", 12, True),
    ("1e3", 1000, True),
    (".5", 0.5, True),
    ("#### 72.", "The answer: #### 72", True),
    ("1/0", 1, False),
    ("1000001", 1000000, True),
    ("1000002", 1000000, False),
    ("9" * 400, 1, False),
    ("room x12", 12, False),
    ("none", 0, False),
    (None, 0, False),
    ("8", ["7", "8"], True),
])  # fmt: skip
def test_numbers(answer, gold, right):
    assert numeric(Task.of("t", "", answer=gold), played(answer)) == right


def test_numeric_tolerance_is_relative_above_one():
    task = Task.of("t", "", answer=200)
    assert numeric(task, played("203"), tolerance=0.02) == 1.0
    assert numeric(task, played("205"), tolerance=0.02) == 0.0


@pytest.mark.parametrize("name", ["exact_match", "f1", "numeric"])
@pytest.mark.parametrize("data", [{}, {"gold": None}, {"gold": []}, {"gold": {"a": 1}}, {"gold": ["a", None]}])
def test_a_task_without_gold_is_an_error_even_if_nothing_was_answered(name, data):
    with pytest.raises(TaskError, match=r"task t: .*'gold'"):
        REWARDS.find(name)(Task.of("t", "", **data), played(None), key="gold")


def test_a_gold_answer_without_a_number():
    with pytest.raises(TaskError, match="'answer' holds no number: 'Paris'"):
        numeric(Task.of("t", "", answer="Paris"), played("3"))


def test_format():
    assert format(played("done", ["ok"], ["error", "timeout"], [])) == 1.0
    assert format(played("done", ["ok", "malformed"], [])) == 0.5
    assert format(played(None, ["ok"])) == format(played(" ", ["ok"])) == format(played("done")) == 0.0
    assert format(played(None, ["ok"]), needs_answer=False) == 1.0


def test_tool_success():
    assert tool_success(played("x", ["ok", "error"], ["malformed", "timeout"])) == 0.25
    assert tool_success(played("x", [], [])) is None
