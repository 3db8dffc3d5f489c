"""Agent with several tries: an answer is graded, the policy hears what was wrong with it, and answers again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from string import Formatter
from typing import Annotated, Any

from pydantic import Field

from agentrl.rewards.functions.answers.comparers import Comparer, among
from agentrl.rewards.functions.verifiers import gold
from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.session import Session
from agentrl.types.errors import RecipeError, TaskError, nearest
from agentrl.types.parts.content import text_of

AGAIN = "That is not right. Try again."
CRITIC = "{task}\n\nSomebody answered: {answer}\n\nSay what is wrong with this answer, and how to find a better one."


class RetryingAgent(ToolAgent):
    """Extends `tool_agent`: an answer that is not right does not end the episode. Feedback follows, and another try.

    `session.info["tries"]` holds a mapping for each try: `answer`, `score` (0 to 1) and `turns`, the indices of its
    turns. The reward `tries` reads it.

    `feedback` and `critic_prompt` are templates: `{answer}` is the try's answer, `{task}` the text of the instruction,
    `{told}` the text that the grading function returned, `{critique}` the critic's reply, and any other name a
    field of `task.data`.

    Args:
        grade: a comparer of the answer with `task.data[key]`, or a function `grade(session, answer)` of the recipe that
            returns a score, or a score and a text; it may be `async`.
        tries: the most answers.
        feedback: what the policy hears after a try.
        always: goes on after a right answer, too.
        fresh: the next try begins with the opening and the feedback: the policy does not see the tries before.
        critic: the policy that speaks `{critique}` in a context of its own, with the role `critic`: a name under
            `policies`, or `policy`, the main one, whose critiques are trained.
        critic_prompt: what the critic is asked.
        key: field of `task.data` with the gold answer.
    """

    def __init__(
        self,
        grade: Comparer | Callable[..., Any] = "squad",
        tries: Annotated[int, Field(gt=0)] = 2,
        feedback: str = AGAIN,
        always: bool = False,
        fresh: bool = False,
        critic: str | None = None,
        critic_prompt: str = CRITIC,
        key: str = "answer",
    ) -> None:
        self.grade, self.tries, self.feedback, self.key = grade, tries, feedback, key
        self.always, self.fresh = always, fresh
        self.critic, self.critic_prompt = critic, critic_prompt
        if (critic is None) == ("critique" in _names(feedback)):
            what = "nobody speaks {critique}" if critic is None else "nothing shows what the critic says"
            raise RecipeError(
                what, place="agent.feedback", remedy="name a policy, and write {critique} in the feedback"
            )

    async def run(self, session: Session) -> None:
        """Runs the loop of `tool_agent` until an answer is right, or no try is left."""
        tries: list[dict[str, Any]] = []
        session.info["tries"] = tries
        while True:
            begun = len(session.turns)
            await super().run(session)
            assert session.outcome is not None
            answer = session.outcome.answer or ""
            score, told = await self._graded(session, answer)
            turns = [turn.index for turn in session.turns[begun:]]
            tries.append({"answer": answer, "score": score, "turns": turns})
            if len(tries) >= self.tries or (score >= 1 and not self.always):
                return
            said = {"answer": answer, "told": told, "task": _text(session)}
            if self.critic is not None:
                said["critique"] = await self._critique(session, len(tries), said)
            session.outcome = None
            heard = _filled(self.feedback, said, session)
            if self.fresh:
                session.rewrite([*session.opening, {"role": "user", "content": heard}])
            else:
                session.say(heard)

    async def _graded(self, session: Session, answer: str) -> tuple[float, str]:
        """Returns the score of an answer, and the text of the grading function."""
        if isinstance(self.grade, str):
            found = among(answer, gold(session.task, self.key), self.grade)
        else:
            found = self.grade(session, answer)
        if inspect.isawaitable(found):
            found = await found
        score, told = found if isinstance(found, tuple) else (found, "")
        return float(score), str(told)

    async def _critique(self, session: Session, number: int, said: dict[str, Any]) -> str:
        asked = [{"role": "user", "content": _filled(self.critic_prompt, said, session)}]
        critic = session.context(f"critic-{number}", asked, tools=[], role="critic", policy=str(self.critic))
        return (await critic.generate()).text.strip()


def _names(template: str) -> list[str]:
    """Returns the names in a template.

    Raises:
        RecipeError: it is not a template.
    """
    try:
        return [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise RecipeError(
            f"{template!r} is not a template: {error}", place="agent", remedy="write {{ and }} for braces"
        ) from None


def _filled(template: str, said: dict[str, Any], session: Session) -> str:
    values = {**session.task.data, **said}
    if missing := next((name for name in _names(template) if name not in values), None):
        raise TaskError(
            f"the agent's feedback names {missing!r}, and the task's data has no such field",
            place=f"task {session.task.id}",
            remedy=nearest(missing, values, "there are"),
        )
    return template.format_map(values)


def _text(session: Session) -> str:
    return "\n".join(text_of(message["content"]) for message in session.task.instruction)
