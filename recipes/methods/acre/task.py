"""A second answer from the same thought, with the options in another order, and the reward of agreement."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentrl import Agent, Task
from agentrl.rollouts.session import Session
from agentrl.types.episode import Episode

LETTERS = "ABC"


class AskedAgain(Agent):
    """Answers, then answers again after its own thought, with the options shuffled. The second reply does not train."""

    async def run(self, session: Session) -> None:
        """Takes the two turns. `info` gets the place of the second answer among the options as they were first."""
        first = await session.generate()
        answer = first.text.strip() if first.answer is None else first.answer
        order = session.rng.sample(range(len(LETTERS)), len(LETTERS))
        options = [session.task.data["options"][place] for place in order]
        asked = " ".join(f"{letter} {option}" for letter, option in zip(LETTERS, options, strict=True))
        said = await session.aside(f"The options are now {asked}. Answer after the same thought.", "again", False)
        letter = re.search(r"<answer>\s*([ABC])\s*</answer>", said)
        session.info["second"] = None if letter is None else LETTERS[order[LETTERS.index(letter[1])]]
        session.finish("answer", answer)


def consistent(task: Task, episode: Episode, info: Mapping[str, Any], *, alone: float = 0.5) -> float:
    """1 if both answers are right, `alone` if only the first is, else 0."""
    if (episode.answer or "").strip() != task.data["answer"]:
        return 0.0
    return 1.0 if info.get("second") == task.data["answer"] else alone
