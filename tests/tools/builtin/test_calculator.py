"""The `calculator` tool: what it computes, and why it refuses the rest."""

from __future__ import annotations

import pytest

from agentrl.tools.builtin.calculator import Calculator
from agentrl.types.errors import ToolError


@pytest.mark.parametrize(
    ("expression", "value"),
    [("(3 + 4) * 2 ^ 5", "224"), ("−7 // 2", "-4"), ("round(2.345, 1)", "2.3"), ("max(1, sqrt(16)) × 2", "8.0")],
)
async def test_arithmetic_is_computed(expression: str, value: str) -> None:
    assert await Calculator().calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1+" * 500 + "1", "the expression is longer than 1000 characters"),
        ("factorial(3)", "there is no function 'factorial'"),
        ("2 ** 5000", "the result is too large"),
        ("2 ** 2000 * 2 ** 2000 * 2 ** 2000", "the result is too large"),
        ("(-8) ** 0.5", "the result is no real number"),
        ("1e308 * 10", "the result is inf"),
        ("round(1, 500)", "round takes at most 400 digits"),
        ("'a' * 9", "is no arithmetic"),
        ("1 / 0", "division by zero"),
        ("(", "was never closed"),
    ],
)
async def test_what_is_no_arithmetic_is_refused_by_the_reason(expression: str, why: str) -> None:
    with pytest.raises(ToolError) as refused:
        await Calculator().calculate(expression)
    assert why in str(refused.value)
