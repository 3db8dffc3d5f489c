"""Rewards whose cost an agent decides: answers of a group are read once each, and no single one decides the time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentrl.rewards.functions.answers import comparers
from agentrl.rewards.functions.answers.comparers import Comparer, classes
from agentrl.rewards.functions.boxes import box_look
from agentrl.sandbox.helper import TooMuch
from agentrl.types.task import Task
from tests.rewards.make import make_episode, turn


@pytest.mark.parametrize("how", ["squad", "exact", "numeric"])
def test_each_answer_of_a_group_is_read_once(how: Comparer, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(name: str) -> Any:
        own = getattr(comparers, name)
        return lambda text: (read.append(name), own(text))[1]

    for name in ("normalise", "last_number", "_composed"):
        monkeypatch.setattr(comparers, name, counted(name))
    answers = [f"The answer is {k}." for k in range(30)] + [None, "the Answer is 3", "The answer is 3."]
    found = classes(answers, how)
    assert found[:31] == [*range(30), None]
    assert found[31:] == ([31, 3] if how == "exact" else [3, 3])
    assert len(read) <= 2 * len(answers)


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        (["50%", "0.5", "50", "1/2", None, "none"], [0, 0, 0, 0, None, 5]),
        (["2", "1.9999999", "two", "two ", "2 or 3"], [0, 0, 2, 2, 4]),
    ],
)
def test_answers_are_the_same_by_their_numbers(answers: list[str | None], found: list[int | None]) -> None:
    assert classes(answers, "numeric") == found


class Slow:
    """The helper of maths: a pair with a slow answer takes too long."""

    def __init__(self, *slow: str, both: bool = False) -> None:
        self.slow, self.seconds, self.asked_slow = slow, list[float](), list[str]()
        self.needed = 2 if both else 1

    async def ask(self, function: Any, one: str, other: str, *more: Any, cpu_s: float) -> str:
        self.seconds.append(cpu_s)
        if (one in self.slow) + (other in self.slow) >= self.needed:
            self.asked_slow.append(f"{one} {other}")
            raise TooMuch("no result")
        return "equal" if float(one) == float(other) else "different"


async def test_an_answer_that_takes_for_ever_costs_its_group_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other members keep their votes, those compared with it included."""
    slow = Slow("slow")
    monkeypatch.setattr(comparers, "MATHS", slow)
    answers = ["slow", *[f"{k % 4}" if k % 2 else f"{k % 4}.0" for k in range(40)], "slow"]
    found = await classes(answers, "maths")
    assert found[0] == found[-1] == 0
    assert len({*found[1:-1]}) == 4
    assert len(slow.asked_slow) == 2


async def test_many_of_them_are_given_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"slow{k}" for k in range(20)]
    slow = Slow(*names)
    monkeypatch.setattr(comparers, "MATHS", slow)
    found = await classes([*names[:10], "7", "7.0", *names[10:], "7.00"], "maths")
    assert found[11] == found[-1] == 10
    assert sum(slow.seconds) < 120.0, "of 300 s that scoring has"


async def test_answers_that_are_slow_with_each_other_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by itself is quick."""
    names = [f"{k}00" for k in range(30)]
    slow = Slow(*names, both=True)
    monkeypatch.setattr(comparers, "MATHS", slow)
    found = await classes([*names, "7", "7.0"], "maths")
    assert found[-2:] == [30, 30]
    assert len(slow.asked_slow) < 100


async def test_a_text_that_is_too_long_is_compared_as_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(comparers, "MATHS", slow)
    long = "1" * 30_000
    assert await classes([long, f" {long}", "1", "1.0"], "maths") == [0, 0, 2, 2]
    assert len(slow.seconds) == 1


def test_a_look_is_found_in_a_time_that_grows_with_the_text() -> None:
    task = Task.of("t", "?", box=[0, 0, 10, 10])

    def looked(text: str) -> float:
        return box_look(task, make_episode(task, turn(text=text), answer=""))  # type: ignore[return-value]

    assert looked("x<blink>[0, 0, 10, 10]</blink>") == 1.0
    assert looked("</blink><blink>[0, 0, 10, 10]</blink><blink>[0, 0, 1, 1]</blink>") == 1.0
    assert looked("<blink>[0, 0, 10, 10]") == 0.0
    began = time.process_time()
    assert looked("<blink>" * 30_000) == 0.0
    assert time.process_time() - began < 1.0
