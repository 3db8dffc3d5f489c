"""An agent that grades its own solutions in evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from agentrl import ToolAgent
from agentrl.rollouts.conversation.conversation import Conversation
from agentrl.rollouts.session import Session

QUESTION = "Go through the solution above, step by step. Is it right? End with yes or no."


class SelfGrader(ToolAgent):
    """Solves a task once to train, and several times to be evaluated; then it grades its solutions and votes.

    Args:
        samples: solutions in an evaluation.
        turns: turns of a solution, at most.
    """

    def __init__(self, samples: Annotated[int, Field(gt=1)] = 4, turns: Annotated[int, Field(gt=0)] = 2) -> None:
        self.samples, self.turns = samples, turns

    async def run(self, session: Session) -> None:
        """Solves the task; in an evaluation several times, with a vote of the solutions that the policy finds right."""
        if session.split != "eval":
            await self._solve(session)
            return
        more = [session.context(f"solution-{n}", session.opening) for n in range(1, self.samples)]
        answers, grades = [], []
        for solution in (session, *more):
            await self._solve(solution)
            answers.append(solution.outcome.answer if solution.outcome is not None else None)
            grades.append(await solution.aside(QUESTION, "grader", trained=False))
        session.info |= {"solutions": answers, "grades": grades}
        session.finish("answer", self.chosen(answers, [right(grade) for grade in grades]))

    async def _solve(self, solution: Conversation) -> None:
        for _ in range(self.turns):
            if solution.outcome is None:
                await self.take_turn(solution)
        if solution.outcome is None:
            solution.finish("turns")

    def chosen(self, answers: Sequence[str | None], accepted: Sequence[bool]) -> str | None:
        """Returns the most frequent answer among the accepted ones, or among all if none is accepted."""
        found = [answer for answer, ok in zip(answers, accepted, strict=True) if ok and answer is not None]
        pool = found or [answer for answer in answers if answer is not None]
        return Counter(pool).most_common(1)[0][0] if pool else None


def right(grade: str) -> bool:
    """Returns True if the last word of a grade is yes."""
    return grade.casefold().rstrip(" .!*").endswith("yes")
