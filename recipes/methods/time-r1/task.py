"""Questions of Time-R1 about an invented chronicle, and the reward of dates, differences, orders and months."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence

from agentrl import Episode, Say, Task
from agentrl.rewards import reward

KINDS = ("inference", "difference", "ordering", "completion")
THINGS = ("bridge", "school", "mill", "harbour", "tower", "market")
BONUS, WRONG_FORM = 0.05, 0.2
"""For an answer of the right form; and what any other one costs (authors: two or three dates that cannot be read)."""


def named(month: int) -> str:
    """A month, counted from year 0, as YYYY-MM."""
    return f"{month // 12:04}-{month % 12 + 1:02}"


def counted(date: str) -> int:
    """The number of a month in the form YYYY-MM."""
    return int(date[:4]) * 12 + int(date[5:7]) - 1


def events(kinds: Sequence[str] = KINDS, hard: bool | None = None, n: int = 96) -> Iterator[Task]:
    """`n` questions, every kind in turn. Hard ones lie years from the date in the prompt, easy ones months.

    Args:
        hard: only hard, or only easy questions; default: both in turn.
    """
    for number in range(n):
        kind, rng = kinds[number % len(kinds)], random.Random(number)
        far = number // len(kinds) % 2 == 1 if hard is None else hard
        start = 1990 * 12 + rng.randrange(240)
        months = [start + rng.randint(1, 5) + far * rng.randint(12, 40) for _ in range(3)]
        what = rng.sample(THINGS, 3)
        told = [f"The {thing} opened {month - start} months later." for thing, month in zip(what, months, strict=True)]
        count = {"difference": 2, "ordering": 3}.get(kind, 1)
        asked = {
            "inference": "When did it open?", "difference": "When did each open, and how many months lie between?",
            "ordering": "When did each open, and in which order?",
            "completion": "When did it open, and in which month of the year?",
            "future": "The next will open as many months after that. When?",
        }[kind]  # fmt: skip
        gold = {"dates": [named(month) for month in months[:count]], "month": months[0] % 12 + 1}
        if kind == "future":
            gold["dates"] = [named(2 * months[0] - start)]
        text = f"The town was founded in {named(start)}. {' '.join(told[:count])} {asked}"
        yield Task.of(f"{kind}-{number}", text, kind=kind, hard=far, **gold)


@reward(source="ulab-uiuc/Time-R1, reward_score/time_reasoning.py and time_prediction.py", bounds=(-0.2, 1.05))
def date(
    task: Task, episode: Episode, *, easy: float = 0.1, hard: float = 0.07, to: float | None = None, over: int = 50
) -> float:
    """exp(-alpha * months of error), and 0.05 for an answer of the right form; -0.2 for any other.

    alpha is `easy` for an easy question and `hard` for a hard one; that moves to `to` over the first `over` iterations.
    Two dates count a quarter each, and their difference a half; three dates a fifth each, and their order two fifths.
    Both are multiplied by how well they agree with the dates of the answer. A date counts half, and its month of the
    year the other half, by exp(-3 alpha * months). Three dates that follow a pattern earn a fifth.
    """
    alpha = easy
    if task.data["hard"]:
        alpha = hard if to is None else hard + (to - hard) * min(1.0, episode.iteration / over)
    kind, answer, gold = task.data["kind"], (episode.answer or "").strip(), task.data["dates"]
    dates = re.findall(r"\d{4}-(?:0[1-9]|1[0-2])", answer)
    if len(dates) != len(gold):
        return -WRONG_FORM
    close = [math.exp(-alpha * abs(counted(one) - counted(other))) for one, other in zip(dates, gold, strict=True)]
    if kind == "difference":
        said = re.search(r"; (\d{1,3})$", answer)
        if said is None:
            return -WRONG_FORM
        claimed, true = int(said[1]), abs(counted(gold[0]) - counted(gold[1]))
        agrees = abs(abs(counted(dates[0]) - counted(dates[1])) - claimed)
        loose = min(1.0, 25 / claimed) if claimed >= 25 else 1.0
        right = math.exp(-(0.05 if claimed >= 25 else alpha) * abs(claimed - true))
        return BONUS + (0.25 * sum(close) + 0.5 * right) * math.exp(-0.1 * loose * agrees)
    if kind == "completion":
        said = re.search(r"; (1[0-2]|[1-9])$", answer)
        if said is None:
            return -WRONG_FORM
        apart = abs(int(said[1]) - task.data["month"])
        return BONUS + 0.5 * close[0] + 0.5 * math.exp(-3 * alpha * min(apart, 12 - apart))
    if kind == "ordering":
        said = re.search(r"; ([123]-[123]-[123])$", answer)
        if said is None or sorted(said[1].split("-")) != ["1", "2", "3"]:
            return -WRONG_FORM
        own = agreement(said[1], order(dates))
        agrees = 1.0 if own == 3 else (0.2, 0.4, 0.7)[own]
        steps = [counted(two) - counted(one) for one, two in itertools.pairwise(dates)]
        if (steps, said[1]) in (([1, 1], "1-2-3"), ([-1, -1], "3-2-1")) or steps == [0, 0]:
            agrees *= 0.2
        return BONUS + (0.2 * sum(close) + 0.4 * 0.333 * agreement(said[1], order(gold))) * agrees
    return BONUS + close[0]


def order(dates: Sequence[str]) -> str:
    """The numbers of the events, the earliest first."""
    return "-".join(str(k + 1) for k in sorted(range(3), key=lambda k: (dates[k], k)))


def agreement(one: str, other: str) -> int:
    """The number of pairs of events, 0 to 3, that two orders put in the same order."""
    return sum((one.index(a) < one.index(b)) == (other.index(a) < other.index(b)) for a, b in ("12", "13", "23"))


def _said(task: Task, dates: Sequence[str]) -> str:
    end = {
        "difference": lambda: f"; {abs(counted(dates[0]) - counted(dates[1]))}",
        "ordering": lambda: f"; {order(dates)}",
        "completion": lambda: f"; {counted(dates[0]) % 12 + 1}",
    }.get(task.data["kind"], str)()
    return ", ".join(dates) + end


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """The right answer."""
    yield Say(f"<answer>{_said(task, task.data['dates'])}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """An answer of the right form, some months off."""
    dates = [named(counted(each) + rng.randint(-9, 9)) for each in task.data["dates"]]
    yield Say(f"<answer>{_said(task, dates)}</answer>")
