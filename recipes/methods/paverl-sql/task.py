"""PaVeRL-SQL: in evaluations the policy writes several queries, scores each itself, and gives the best."""

from __future__ import annotations

import re
from statistics import fmean
from typing import Any

from agentrl import ToolError
from agentrl.rewards.functions.verifiers import code_in
from agentrl.rollouts.agent import ToolAgent

SCORE = """{task}
A query for this:
{query}
It returns:
{result}
How well does it answer? Say a number from 0 to 10, and nothing else."""


class Verbal(ToolAgent):
    """A group of queries is evaluated by the policy itself: of those that run, the one with the best mean score wins.

    `info["verbal"]` has the number of each query that runs, and its mean score.

    Args:
        candidates: queries of an evaluation.
        scores: times that each is scored; a reply without a number does not count.
        always: also in training and rollouts, which otherwise have one reply.
    """

    def __init__(self, candidates: int = 4, scores: int = 3, always: bool = False) -> None:
        self.candidates, self.scores, self.always = candidates, scores, always

    async def run(self, session: Any) -> None:
        """Answers at once, or by the best of a group."""
        if not self.always and session.split != "eval":
            return await super().run(session)
        rated: list[tuple[str, int, float]] = []
        for number in range(self.candidates):
            writer = session.context(f"candidate {number}", [*session.messages], role="candidate", tools=[])
            reply = await writer.generate()
            query = code_in(reply.text if reply.answer is None else reply.answer).strip()
            if (result := await _result(session, query)) is not None:
                rated.append((query, number, await self._score(session, number, query, result)))
        session.info["verbal"] = [[number, score] for _, number, score in rated]
        best = max(rated, key=lambda each: each[2], default=("", 0, 0.0))
        session.finish("answer", best[0])

    async def _score(self, session: Any, number: int, query: str, result: str) -> float:
        task = str(session.task.instruction[-1]["content"])
        asked = [{"role": "user", "content": SCORE.format(task=task, query=query, result=result)}]
        found = []
        for turn in range(self.scores):
            scorer = session.context(f"score {number}.{turn}", asked, role="scorer", tools=[])
            found += re.findall(r"\b(?:10|\d)\b", (await scorer.generate()).text)[:1]
        return fmean(map(float, found)) if found else 0.0


async def _result(session: Any, query: str) -> str | None:
    """What a query returns; None if it does not run."""
    runs = next(each for each in session.tools if hasattr(each, "sql"))
    try:
        return str(await runs.sql(query)) if query else None
    except ToolError:
        return None
