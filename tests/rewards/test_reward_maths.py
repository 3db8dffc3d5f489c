"""The reward `maths`: answers as numbers, formulas, sets."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from agentrl.rewards.components import RewardSet
from agentrl.rewards.functions.answers.symbolic import is_numeral
from agentrl.rewards.functions.maths import maths
from agentrl.types.errors import MissingExtra
from agentrl.types.task import Task
from tests.rewards.make import make_episode


def test_a_recipe_is_refused_without_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtra, match=r"rewards.right(.|\n)*pip install 'agentrl-framework\[maths\]'"):
        RewardSet.from_recipe({"right": {"use": "maths"}})


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "gold", "right"), [
    (r"2^{3}", "2", 0.0),  # in plain text 2 was read of it
    (r"2^{3}", "8", 1.0),
    (r"we get 1729 ^ {1728}", "1729", 0.0),
    (r"\pm 5", "5", 0.0),  # so was 5, without the sign
    (r"x = \pm{5}", "5", 0.0),
    (r"\pm 5", r"\pm 5", 1.0),
    (r"It is 90^{\circ}.", "90", 1.0),
    (r"so it is $\frac{1}{2}$", "0.5", 1.0),
    (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1.0),
    (r"$x^2-1$", "(x-1)(x+1)", 1.0),
    (r"$\{2, 1\}$", r"\{1,2\}", 1.0),
    (r"$\frac{1}{3}$", "0.5", 0.0),
    ("no idea", "7", 0.0),
    (None, "7", 0.0),
    ("$3$", ["2", "3"], 1.0),
])  # fmt: skip
async def test_symbolic_equality(answer, gold, right):
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    task = Task.of("t", "", answer=gold)
    assert await maths(task, make_episode(task, answer=answer), timeout_s=60) == right


@pytest.mark.parametrize("text", [
    "12", "-1,000.5", "3/4", r"\frac{3}{4}", r"$\dfrac{3}{4}$", "2.5e3", r"50\%", "50%", "x = 5", r"$-\frac{1}{2}$",
    ".5", r"3\frac{1}{2}", "1 + 1 = 2", r"5 \text{ apples}", r"2 \times 10^{3}", r"\$5.00", r"90^\circ",
])  # fmt: skip
def test_what_is_a_number(text: str) -> None:
    assert is_numeral(text)


@pytest.mark.parametrize("text", [
    "84 + 6 * 31", "1/(1/23+1/18)", "3!", "2^{10}", r"\sqrt{4}", r"\frac{1+1}{2}", r"\sum_{i=1}^{4} i", "5*3", "x", "",
    "3-4", "1/2/3", r"\binom{4}{2}", "0.1+0", "- -3", "2 = 1 + 1", r"\int_0^1 2x dx", "\u0661", "1e3e3",
])  # fmt: skip
def test_what_is_no_number(text: str) -> None:
    assert not is_numeral(text)


@pytest.mark.slow
@pytest.mark.parametrize(("question", "gold", "answers"), [
    ("Compute 84 + 6 * 31.", "270", {
        "84 + 6 * 31": 0.0, "$84 + 6*31$": 0.0, "6 * 31 + 84": 0.0, "270": 1.0, r"\boxed{270}": 1.0, "$x = 270$": 1.0,
        "84 + 6 * 31 = 270": 1.0, "270 = 84 + 6 * 31": 0.0, "271": 0.0, r"$\frac{540}{2}$": 0.0,
    }),
    ("How long do both take: 1/(1/23+1/18)?", "414/41", {"1/(1/23+1/18)": 0.0, "414/41": 1.0, "828/82": 1.0}),
    ("Compute 540 / 2.", "270", {
        "540/2": 0.0, "540 / 2": 0.0, r"$\frac{540}{2}$": 0.0, r"\boxed{\dfrac{540}{2}}": 0.0, "270/1": 0.0,
        "270.0": 1.0, "540 / 2 = 270": 1.0,
    }),
    ("How many are 3/4 of 1,000?", "$750$", {"3000/4": 0.0, "750": 1.0}),
    (r"Reduce $\frac{6}{24}$.", r"$\frac{1}{4}$", {
        "6/24": 0.0, r"$\frac{6}{24}$": 0.0, "1/4": 1.0, "0.25": 1.0, "2/8": 1.0,
    }),
    ("Which is more, 1/3 or 1/4?", r"$\frac{1}{3}$", {"1/3": 1.0, r"$\frac{1}{3}$": 1.0, "1/4": 0.0}),
    ("What is 3!?", "6", {"3!": 0.0, "6": 1.0, "3*2": 0.0}),
    ("Factor $x^2 - 1$.", "(x-1)(x+1)", {"x^2-1": 0.0, "$x^2 - 1$": 0.0, "(x+1)(x-1)": 1.0, "(x-1)(x+1)": 1.0}),
    ("Is it 1/2 or x + 1?", ["0.5", "x+1"], {"1/2": 1.0, "$x + 1$": 1.0}),
])  # fmt: skip
async def test_a_formula_of_the_question_is_no_answer(question: str, gold: Any, answers: dict[str, float]) -> None:
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    task = Task.of("t", question, answer=gold)
    found = {}
    for answer in answers:
        said = await maths(task, make_episode(task, answer=answer), form="value", timeout_s=60)
        found[answer] = said if isinstance(said, float) else said.value
        assert isinstance(said, float) or said.note in ("", "not computed", "the question's own text"), said
    assert found == answers


@pytest.mark.slow
@pytest.mark.parametrize(("gold", "right", "hedged"), [
    ("1729",
        ["The answer is 1729.", "The answer is 1729 apples.", "The answer is 1,729 dollars",
         "The answer is 1729 because 12^3 + 1^3 = 1729.", "The answer is 1729, and we are done by Theorem 5.",
         "It is 1728 or 1729, and 1728 fails. The answer is 1729.", "The answer is 1729. It is the sum of 2 cubes.",
         "The answer is 1729. Of 11729, 20 are left.", "The answer is 1729. It is the last of 1728, 1729, 1730"],
        ["The answer is 1729 or 1730.", "The answer is 1729, or 1730.", "The answer is 1729 and 1730.",
         "The answer is 1729; maybe 1730.", "The answer is 1729. No, 1730.", "The answer is 1729 if x, else 1730.",
         "The answer is 1729 or 1730: see 1729", "The answer is between 1729 and 1800", "The answer is 1729, 1730",
         "The answer is 1729, and possibly also perhaps 1730.",
         "1,729,0", "The answer is 1,729,0.", "The answer is 1,729 or 1,730",
         "The answer is 1729\n1730\n1731", "The answer is x=1729, y=1730", "The answer is 1729 \u00b1 5"]),
    (r"$\{1, 2\}$", [r"The answer is $\{1, 2\}$"], []),
])  # fmt: skip
async def test_several_answers_are_none(gold: str, right: list[str], hedged: list[str]) -> None:
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    task, found = Task.of("t", "How many?", answer=gold), {}
    for answer in (*right, *hedged):
        said = await maths(task, make_episode(task, answer=answer), timeout_s=60)
        found[answer] = said if isinstance(said, float) else said.value
    assert found == {**dict.fromkeys(right, 1.0), **dict.fromkeys(hedged, 0.0)}


@pytest.mark.slow
async def test_what_takes_too_long_scores_nothing_and_the_next_is_compared():
    """An answer that nobody can compare must not be a way out of a wrong one."""
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    task = Task.of("t", "", answer="4")
    for answer in ("$9^{9^{9^{9}}} + x$", "$" + "(" * 15_000 + "4", "4" * 30_000):
        found = await maths(task, make_episode(task, answer=answer), timeout_s=1.0)
        assert (found if isinstance(found, float) else found.value) == 0.0
    assert await maths(task, make_episode(task, answer="$2+2$"), timeout_s=60) == 1.0
    task = Task.of("t", "", answer="$9^{9^{9^{9}}} + x$")
    found = await maths(task, make_episode(task, answer="$9^{9^{9^{8}}} + x$"), timeout_s=1.0)
    assert (found.value, found.note) == (0.0, "no result within 1 s")
