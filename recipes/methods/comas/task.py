"""CoMAS: agents solve, evaluate and score in rounds, and the scores are their rewards."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from agentrl import Agent, Episode, Say, Task

EVALUATE = "{task}\nSolution: {solution}\nPoint out every mistake of the solution."
SCORE = """{task}\nSolution: {solution}\nEvaluation: {evaluation}
Score the solution from 1 to 3, as <score>n</score>. 3: it is right, and no mistake in the evaluation is one. 2: there
are minor mistakes. 1: a mistake is fatal."""


class Discussion(Agent):
    """A round: each agent solves; each solution is evaluated, and scored, by an agent drawn for it.

    Every agent evaluates and scores as often as the others. Each of these acts has a context and an outcome of its own.
    In the second round and later solvers see solutions and evaluations of the round before.

    Args:
        agents: policies: `policy`, the main one, and names under `policies`.
        rounds: number of rounds.
        references: number of solutions of the round before that a solver sees, drawn at random.
        interaction: rewards acts by the scores.
    """

    seats = True

    def __init__(
        self,
        agents: Sequence[str] = ("policy", "second"),
        rounds: int = 2,
        references: int = 2,
        interaction: bool = True,
    ) -> None:
        self.agents, self.rounds, self.references, self.interaction = list(agents), rounds, references, interaction

    async def run(self, session: Any) -> None:
        """Holds the rounds. The answers of the last one are those of the episode."""
        task = str(session.task.instruction[-1]["content"])
        said: list[str] = []
        for number in range(self.rounds):
            shown = session.rng.sample(said, min(self.references, len(said)))
            opened = "\n".join([task, *shown])
            acts = [await self._act(session, f"solver {number}.{k}", who, opened) for k, who in enumerate(self.agents)]
            solutions = [(act, reply.text.strip()) for act, reply in acts]
            answers = [reply.answer for _, reply in acts]
            evaluators, scorers = (session.rng.sample(self.agents, len(self.agents)) for _ in range(2))
            said = []
            for k, (solver, solution) in enumerate(solutions):
                asked = EVALUATE.format(task=task, solution=solution)
                evaluator, evaluation = await self._act(session, f"evaluator {number}.{k}", evaluators[k], asked)
                asked = SCORE.format(task=task, solution=solution, evaluation=evaluation.text.strip())
                scorer, score = await self._act(session, f"scorer {number}.{k}", scorers[k], asked)
                said.append(f"Solution: {solution}\nEvaluation: {evaluation.text.strip()}")
                if self.interaction:
                    for act, outcome in zip((solver, evaluator, scorer), interaction(score.text), strict=True):
                        act.score(outcome)
        session.info["answers"] = answers
        session.finish("answer", answers[0] or "")

    async def _act(self, session: Any, name: str, policy: str, text: str) -> tuple[Any, Any]:
        """Returns the context of an act, and the reply."""
        messages = [{"role": "user", "content": text}]
        act = session.context(name, messages, role=name.split()[0], policy=policy, tools=[])
        return act, await act.generate()


def interaction(text: str) -> tuple[float, float, float]:
    """Returns the rewards of a solution, its evaluation and its score: s, 1 - s and 0 for s = (score - 1) / 2; without
    a score from 1 to 3: 0, 0 and -1."""
    found = re.findall(r"<score>\s*([1-3])\s*</score>", text)
    if not found:
        return 0.0, 0.0, -1.0
    share = (int(found[-1]) - 1) / 2
    return share, 1 - share, 0.0


def accuracy(task: Task, episode: Episode) -> float:
    """Share of the solutions of the last round that are right."""
    answers = episode.info.get("answers") or [None]
    return float(sum(answer == task.data["answer"] for answer in answers) / len(answers))


# --- scripts: one for every act --------------------------------------------------------------------------------------


def honest(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Solves rightly, finds no mistake, and gives the best score."""
    yield _said(context, int(task.data["answer"]), "none", "<score>3</score>")


def some(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Is right or one too high, evaluates and scores at random, and forgets the form of a score one time in five."""
    score = f"<score>{rng.randint(1, 3)}</score>" if rng.random() < 0.8 else "good"
    yield _said(context, int(task.data["answer"]) + rng.randint(0, 1), rng.choice(["none", "the sum is wrong"]), score)


def _said(context: str, total: int, evaluation: str, score: str) -> Say:
    return Say({"solver": f"<answer>{total}</answer>", "evaluator": evaluation, "scorer": score}[context.split()[0]])
