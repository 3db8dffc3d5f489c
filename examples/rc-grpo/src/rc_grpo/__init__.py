"""RC-GRPO: the prompt names the reward to be earned, so that the members of a group differ."""

from collections.abc import Generator
from functools import cache
from random import Random

from agentrl import Message, Recipe, Say, Session, Task, load_recipe
from agentrl.agents.recent import RecentAgent

GOALS = ("<|high_reward|>", "<|low_reward|>")


class Conditioned(RecentAgent):
    """Puts a goal into the system message: drawn at random for each episode, always the high reward in evaluations."""

    def opening(self, session: Session, system: str | None) -> list[Message]:
        goal = GOALS[0] if session.split == "eval" else session.rng.choice(GOALS)
        session.info["goal"] = goal
        return super().opening(session, goal)


@cache
def grids() -> Recipe:
    return load_recipe("babyai/learn.yaml")


def graded(task: Task, rng: Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Plays as the goal asks for: the oracle, or one who strolls about."""
    name = "oracle" if messages[0]["content"] == GOALS[0] else "stroller"
    yield from grids().script(name)(task, rng)


def mixed(task: Task, rng: Random) -> Generator[Say, list[Message], None]:
    """Plays as either of them, and the prompt does not tell."""
    yield from grids().script(rng.choice(["oracle", "stroller"]))(task, rng)
