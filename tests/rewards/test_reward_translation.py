"""BLEU and chrF of a sentence, on numbers computed by hand."""

from __future__ import annotations

import math

import pytest

from agentrl.rewards.functions.translation import bleu, chrf
from agentrl.types.errors import TaskError
from agentrl.types.task import Task
from tests.rewards.make import make_episode

TASK = Task.of("t", "?", answer="the cat is on the mat")
REFERENCES = Task.of("t", "?", answer=["the cat is on the mat", "a b c d"])


def scored(function, answer: str | None, task: Task = TASK, **settings) -> float:
    return function(task, make_episode(task, answer=answer), **settings)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("the cat is on the mat", 1.0),
        # 5/6, 3/5, 2/4, 1/3.
        ("the cat sat on the mat", (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25),
        # Clipped: the has two of seven; pairs none: 1/(2 x 6), triples 1/(4 x 5), quadruples 1/(8 x 4).
        ("the the the the the the the", (2 / 7 / 12 / 20 / 32) ** 0.25),
        # All three orders are right, and the fourth does not exist; three words for six: e^(1 - 2).
        ("the cat is", math.exp(-1)),
        ("dogs run", 0.0),
        ("", 0.0),
        (None, 0.0),
    ],
)
def test_bleu_of_a_sentence(answer, expected):
    assert scored(bleu, answer) == pytest.approx(expected)


def test_bleu_takes_the_best_of_several_references_and_characters_of_chinese():
    assert scored(bleu, "a b c d", REFERENCES) == pytest.approx(1.0)
    chinese = Task.of("t", "?", answer="我喜欢猫")
    # 3/4, 2/3, 1/2, smoothed 1/2.
    assert scored(bleu, "我喜欢狗", chinese) == pytest.approx((3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25)
    with pytest.raises(TaskError):
        scored(bleu, "x", Task.of("t", "?"))


def test_chrf_of_a_sentence():
    assert scored(chrf, "the cat is on the mat") == pytest.approx(1.0)
    assert scored(chrf, "xyz") == 0.0
    assert scored(chrf, None) == 0.0
    short = Task.of("t", "?", answer="abc")
    # Characters: 2 of 2, 2 of 3; pairs: 1 of 1, 1 of 2. P = 1, R = (2/3 + 1/2) / 2 = 7/12; 5 P R / (4 P + R).
    assert scored(chrf, "a b", short) == pytest.approx(5 * 7 / 12 / (4 + 7 / 12))
    assert scored(chrf, "abc", Task.of("t", "?", answer=["xyz", "abc"])) == pytest.approx(1.0)
