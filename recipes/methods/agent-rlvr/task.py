"""Guidance after a failed try: what was wrong with it, and a plan taken from the task's own solution."""

from __future__ import annotations

import ast

from agentrl.rewards.functions.answers.comparers import equal_numbers, last_number
from agentrl.rollouts.session import Session

_STEPS: dict[type, str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Mod: "take the remainder",
}  # fmt: skip


def guided(session: Session, answer: str) -> tuple[float, str]:
    """Validates an answer, and guides: feedback on the answer and on refused calls, and the plan of the solution."""
    wanted, said = last_number(str(session.task.data["answer"])), last_number(answer)
    if equal_numbers(said, wanted):
        return 1.0, ""
    feedback = (
        f"Your answer {said[0]:g} is too {'small' if said[0] < wanted[0] else 'large'}." if said else "No answer."
    )
    refused = [call.result for turn in session.turns for call in turn.calls if call.outcome != "ok"]
    return 0.0, " ".join([feedback, *refused[-1:], f"Plan: {plan(session.task.data['code'])}."])


def plan(code: str) -> str:
    """The operations of a program, inner ones first: `(2 + 3) * 4` is "add, then multiply"."""

    def steps(node: ast.AST) -> list[str]:
        inner = [step for child in ast.iter_child_nodes(node) for step in steps(child)]
        return [*inner, *([_STEPS[type(node.op)]] if isinstance(node, ast.BinOp) and type(node.op) in _STEPS else [])]

    return ", then ".join(steps(ast.parse(code))) or "run a program"
