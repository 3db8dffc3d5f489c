"""The calculator and the memory."""

from __future__ import annotations

import pytest

from agentrl.tools.builtin.calculator import Calculator
from agentrl.tools.builtin.memory import Memory
from agentrl.types.errors import RecipeError, ToolError


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(3 + 4) * 2 ** 5", "224"), ("2^10", "1024"), ("7 / 2", "3.5"), ("-7 // 2", "-4"),
        ("sqrt(16) + gcd(12, 18)", "10.0"),
        ("round(pi, 4)", "3.1416"), ("max(1, 2.5)", "2.5"), ("3 × 4 − 2", "10"), ("2 ** -1", "0.5"),
    ],
)  # fmt: skip
async def test_what_is_computed(expression: str, value: str) -> None:
    assert await Calculator().calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", "1 +", "1 / 0", "9 ** 9 ** 9", "10 ** 100000", "(-8) ** 0.5", "1e308 * 10", "__import__('os').getpid()",
        "(1).bit_length()", "'a' * 3", "[1, 2]", "x + 1", "lambda: 1", "True", "round(1, ndigits=2)", "exp(1000)",
        "(" * 400 + "1" + ")" * 400, "1 if 1 else 2", "log(0)", "gcd(1.5, 2)",
    ],
)  # fmt: skip
async def test_what_is_no_arithmetic_is_an_observation(expression: str) -> None:
    with pytest.raises(ToolError, match="cannot compute|longer than"):
        await Calculator().calculate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "round(7, -401)", "round(7, -(10**9))", "round(2**2000, -(10**9))", "round(7.5, 10**9)", "round(1, -(2**2000))",
        "round(7, floor(-1e300))", "1 + round(7, max(-10**9, -10**10))", "round(7, 3 - 10**9)",
    ],
)  # fmt: skip
async def test_a_number_is_rounded_to_few_digits(expression: str) -> None:
    """Python computes `10**digits`, for hours, and nothing interrupts it."""
    with pytest.raises(ToolError, match="round takes at most 400 digits"):
        await Calculator().calculate(expression)
    assert await Calculator().calculate("round(12345, -2) + round(pi, 400) - pi") == "12300.0"


async def test_notes_are_kept_replaced_and_deleted() -> None:
    memory, other = Memory(notes=2, chars=10), Memory()
    assert await memory.recall() == "no notes"
    assert await memory.remember("a", "one") == "kept 'a'"
    await memory.remember("b", "two")
    assert (await memory.recall(), await memory.recall("b")) == ("a\nb", "two")
    await memory.remember("b", "three")
    assert await memory.recall("b") == "three"
    for refused, why in ((("c", "x"), "2 notes"), (("a", "x" * 11), "10 characters"), ((" ", "x"), "name")):
        with pytest.raises(ToolError, match=why):
            await memory.remember(*refused)
    assert memory.state_key() != other.state_key()
    assert await memory.remember("a", "") == "deleted 'a'"
    await memory.remember("b", "")
    assert memory.state_key() == other.state_key()
    for missing in (memory.recall("a"), memory.remember("a", "")):
        with pytest.raises(ToolError, match="no note 'a'; there are: none"):
            await missing


def test_bounds_are_checked() -> None:
    with pytest.raises(RecipeError, match="notes must be at least 1"):
        Memory(notes=0)
