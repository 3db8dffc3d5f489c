"""Questions about findings, with four answers to choose from or with none. Invented, and no medical advice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

from agentrl import Say, Task

FINDINGS = {
    "a shadow in the left lung": "pneumonia of the left lung",
    "a shadow in the right lung": "pneumonia of the right lung",
    "air around the left lung": "collapse of the left lung",
    "air around the right lung": "collapse of the right lung",
    "a line across the left arm": "fracture of the left arm",
    "a line across the right arm": "fracture of the right arm",
    "a line across the left leg": "fracture of the left leg",
    "a line across the right leg": "fracture of the right leg",
    "a swelling of the left knee": "bruise of the left knee",
    "a swelling of the right knee": "bruise of the right knee",
    "a stone in the left kidney": "colic of the left kidney",
    "a stone in the right kidney": "colic of the right kidney",
}


def findings(form: Literal["closed", "open"] = "closed") -> Iterator[Task]:
    """A question about each finding. The answer of the closed form is a letter, and that of the open form its words."""
    for number, (seen, name) in enumerate(FINDINGS.items()):
        if form == "open":
            yield Task.of(f"open-{number}", f"There is {seen}. What is it?", answer=name, choices=[*FINDINGS.values()])
            continue
        rng = random.Random(number)
        others = rng.sample([other for other in FINDINGS.values() if other != name], 3)
        shown = rng.sample([name, *others], 4)
        listed = " ".join(f"({letter}) {each}" for letter, each in zip("ABCD", shown, strict=True))
        answer = "ABCD"[shown.index(name)]
        yield Task.of(f"closed-{number}", f"There is {seen}. What is it? {listed}", answer=answer, choices=[*"ABCD"])


def oracle(task: Task, rng: random.Random) -> Iterator[Say]:
    """The right answer."""
    yield Say(f"<answer>{task.data['answer']}</answer>")


def guesser(task: Task, rng: random.Random) -> Iterator[Say]:
    """An answer of the right form."""
    yield Say(f"<answer>{rng.choice(task.data['choices'])}</answer>")
