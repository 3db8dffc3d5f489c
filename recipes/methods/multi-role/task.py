"""Questions on which people differ: the answer is what most of those concerned say."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from agentrl import Say, Task
from agentrl.types.episode import Episode

ROLES = ["baker", "nurse", "pupil", "driver", "farmer"]
PLANS = ["a new bridge", "a late bus", "a night market", "a large park", "a school garden", "a quiet street"]


def plans(n: int = 256, held_out: bool = False) -> Iterator[Task]:
    """`n` plans of a town, and who is for them: three of five roles each."""
    for k in range(n):
        rng = random.Random(f"{held_out} {k}")
        said = {role: rng.choice(["yes", "no"]) for role in rng.sample(ROLES, 3)}
        told = ", ".join(f"{role}: {word}" for role, word in said.items())
        most = max(["yes", "no"], key=[*said.values()].count)
        yield Task.of(
            f"plan/{held_out}/{k}", f"Should the town have {rng.choice(PLANS)}? {told}.", answer=most, said=said
        )


def perspectives(task: Task, episode: Episode) -> float:
    """Share of the roles of the question that the thought lets speak, each by its name."""
    text = " ".join(turn.text for turn in episode.own_turns)
    return sum(f"[{role}]" in text for role in task.data["said"]) / len(task.data["said"])


def panel(task: Task, rng: random.Random) -> Iterator[Say]:
    """Lets every role speak, and answers with the majority."""
    yield _spoken(task, [*task.data["said"]])


def some(task: Task, rng: random.Random) -> Iterator[Say]:
    """Lets one to three roles speak, one of them perhaps twice, and answers with the majority of these."""
    roles = rng.sample([*task.data["said"]], rng.randint(1, 3))
    yield _spoken(task, roles + roles[:1] * rng.randint(0, 2))


def _spoken(task: Task, roles: Sequence[str]) -> Say:
    words = [task.data["said"][role] for role in roles]
    thought = " ".join(f"[{role}] {word}" for role, word in zip(roles, words, strict=True))
    return Say(f"<think>{thought}</think><answer>{max(words, key=words.count)}</answer>")
