"""Agent that makes up questions: it explores, proposes a question with its answer, and makes it harder."""

from __future__ import annotations

from agentrl.rewards.functions.answers.comparers import normalise
from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.session import Session
from agentrl.tools.base import Tool, tool

EVOLVE = (
    "Propose the question again, harder: replace names, dates and numbers that give the search away by vaguer "
    "descriptions, which still lead to one answer."
)
UNTRIED = "no model could try to answer it: the episode had reached a limit, or the question is too long"
SOLVE = "Answer the question with as few words as possible, and nothing else.\n\nQuestion: {question}"


class SynthesisAgent(ToolAgent):
    """Extends `tool_agent` by the tool `propose(question, answer)`: the episode is to make up a question.

    The agent explores with the recipe's tools and proposes. Then it is asked for a harder question, once per text of
    `evolve` (WebExplorer, arXiv:2509.06501: from long to short; ASearcher, arXiv:2508.07976: facts are injected, then
    blurred). The last question is accepted if some tool showed its answer, the question does not hold the answer, and a
    model that cannot search gives no right answer in `tries` attempts. The reward `accepted` tells. The source of tasks
    `accepted` makes tasks of the accepted questions of a run.

    Args:
        evolve: messages that ask for the next question.
        solver: name of the model under `policies` that answers without tools.
        tries: its attempts.
    """

    def __init__(self, evolve: tuple[str, ...] = (EVOLVE, EVOLVE), solver: str = "solver", tries: int = 2) -> None:
        self.evolve, self.solver, self.tries = evolve, solver, tries
        self._proposals = Proposals()

    def tools(self) -> list[Tool]:
        """Returns the tool `propose`."""
        return [self._proposals]

    async def run(self, session: Session) -> None:
        """Explores until each proposal is made, then judges the last one. A reply without calls ends it early."""
        made = self._proposals.made
        for wanted, asked in enumerate(("", *self.evolve), 1):
            if asked:
                session.say(asked)
            while session.outcome is None and len(made) < wanted:
                await self.take_turn(session)
        if made:
            question, answer = made[-1]
            session.info["proposed"] = {"question": question, "answer": answer}
            session.info["rejected"] = UNTRIED  # a limit may end the episode before anything else is known
            session.info["rejected"] = await self._objection(session, question, answer)
        session.finish("answer", made[-1][0] if made else None)

    async def _objection(self, session: Session, question: str, answer: str) -> str:
        """Returns the reason why a question is rejected; "" if it is accepted."""
        calls = [call for turn in session.turns for call in turn.calls]
        shown = normalise(" ".join(call.result for call in calls if call.name != "propose" and call.outcome == "ok"))
        if not _holds(shown, answer):
            return "no tool showed the answer"
        if _holds(question, answer):
            return "the question holds the answer"
        for number in range(self.tries):
            asked = [{"role": "user", "content": SOLVE.format(question=question)}]
            reply = await session.context(f"solver-{number + 1}", asked, policy=self.solver).generate()
            if _holds(reply.text, answer):
                return "a model answers it without a search"
        return ""


class Proposals(Tool):
    """Tool of a `SynthesisAgent`."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    @tool
    async def propose(self, question: str, answer: str) -> str:
        """Propose a question that your findings answer.

        Args:
            question: The question, which must have one answer.
            answer: The answer alone, as the pages have it.
        """
        self.made.append((question.strip(), answer.strip()))
        return "noted"


def _holds(text: str, answer: str) -> bool:
    wanted = normalise(answer)
    return bool(wanted) and f" {wanted} " in f" {normalise(text)} "
