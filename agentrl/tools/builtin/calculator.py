"""The `calculator` tool: arithmetic without code execution."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from agentrl.tools.base import Tool, tool
from agentrl.types.errors import ToolError

_LONGEST = 1000  # characters of an expression
_BITS = 4096  # of an integer result
_DIGITS = 400  # maximum digits of `round`, before or after the point; enough for any float

_SIGNS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.UAdd: operator.pos, ast.USub: operator.neg,
}  # fmt: skip


def _round(value: Any, digits: Any = None) -> Any:
    """Rounds a number. Limits the digits, because Python computes `10**-digits` for integers.

    Raises:
        ValueError: too many digits.
    """
    if isinstance(digits, int) and abs(digits) > _DIGITS:
        raise ValueError(f"round takes at most {_DIGITS} digits")
    return round(value, digits)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "round": _round, "min": min, "max": max, "sqrt": math.sqrt, "exp": math.exp, "log": math.log,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "floor": math.floor, "ceil": math.ceil, "gcd": math.gcd,
}  # fmt: skip
_CONSTANTS = {"pi": math.pi, "e": math.e}


class Calculator(Tool):
    """Offers `calculate(expression)`."""

    stateless = parallel = True

    @tool
    async def calculate(self, expression: str) -> str:
        """Compute an arithmetic expression, for example `(3 + 4) * 2 ** 5` or `sqrt(2) * pi`.

        Args:
            expression: Numbers, + - * / // % **, brackets, and abs, round, min, max, sqrt, exp, log, sin, cos, tan,
                floor, ceil, gcd, pi, e.
        """
        text = expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/").replace("−", "-")
        if len(text) > _LONGEST:
            raise ToolError(f"the expression is longer than {_LONGEST} characters")
        try:
            value = _value(ast.parse(text, mode="eval").body)
        except (SyntaxError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
            raise ToolError(f"cannot compute {expression!r}: {error}") from None
        if isinstance(value, float) and not math.isfinite(value):
            raise ToolError(f"cannot compute {expression!r}: the result is {value}")
        return str(value)


def _value(node: ast.AST) -> Any:
    """Evaluates a node of an expression.

    Raises:
        ValueError: the node is not arithmetic, or the result is too large.
    """
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _power(_value(node.left), _value(node.right))
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        return _bounded(_SIGNS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id in _FUNCTIONS:
            return _bounded(_FUNCTIONS[node.func.id](*map(_value, node.args)))
        raise ValueError(f"there is no function {node.func.id!r}")
    raise ValueError(f"{ast.unparse(node)!r} is no arithmetic")


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent > 0
    if whole and base.bit_length() * exponent > _BITS:
        raise ValueError("the result is too large")
    return _bounded(base**exponent)


def _bounded(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise ValueError(f"the result is no real number: {value}")
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ValueError("the result is too large")
    return value
