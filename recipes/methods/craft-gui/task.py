"""Single steps of ways of a given length, and questions about a page, each with the rewards that score it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentrl import Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.rewards import Scored, reward
from agentrl.rewards.functions.judges.client import Judge
from agentrl.rewards.functions.judges.grading import rubric_judge
from agentrl.types.episode import Episode

METHODS = Path(__file__).parents[1]
SEEDS: dict[str, int] = load_object("./miniwob/task.py:SEEDS", METHODS.parent)
LENGTHS: dict[str, int] = load_object("./mobile-r1/task.py:LENGTHS", METHODS)
OneStep = load_object("./mobile-r1/task.py:OneStep", METHODS)
one_steps: Callable[..., Iterator[Task]] = load_object("./mobile-r1/task.py:steps", METHODS)
narrator: Callable[..., Generator[Say, list[Message], None]] = load_object("./mobile-r1/task.py:narrator", METHODS)
form: Callable[[Episode], float] = load_object("./mobile-r1/task.py:form", METHODS)
same: Callable[..., bool] = load_object("./mobile-r1/task.py:same", METHODS)

ASKED = re.compile(r"\nQuestion: what does element \[(\d+)\] say\?$")


def samples(
    families: Sequence[str] = tuple(LENGTHS),
    split: str = "train",
    seeds: int = 16,
    lengths: Sequence[int] = (1, 2, 3),
    questions: int = 4,
) -> Iterator[Task]:
    """Every step of the ways of these lengths; after `questions` steps, a question about the page of the last one.

    Args:
        split: `train` or `held-out`: which seeds.
        seeds: of each family.
        questions: steps between two questions; 0: no questions.
    """
    rules = {"scored_by": ["tool", "arguments", "form"]}
    for number, task in enumerate(one_steps(families, split, seeds, lengths), 1):
        yield msgspec.structs.replace(task, data={**task.data, **rules})
        if questions and number % questions == 0:
            yield _question(task.data["family"], task.data["seed"], number)


def shown(families: Sequence[str] = tuple(LENGTHS), seeds: int = 16) -> Iterator[Task]:
    """What demonstrations show: whole ways and questions, in turn."""
    for seed in range(seeds):
        for family in families:
            yield Task.of(f"{family}/{seed}", [], family=family, seed=seed, scored_by=["form"])
            yield _question(family, seed, 0)


def _question(family: str, seed: int, number: int) -> Task:
    id = f"{family}/{seed}/asked-{number}"
    return Task.of(id, [], family=family, seed=seed, asked=True, scored_by=["understood"])


class Page(OneStep):  # type: ignore[misc]
    """A page before a step, or with a question about it: `info` holds the question and the words that answer it."""

    question = ""

    async def open(self, task: Task, sandbox: Any) -> None:
        await super().open(task, sandbox)
        if task.data.get("asked"):
            texts = [(line[1], line[5]) for line in self.state["lines"] if line[1] and line[5]]
            number, words = random.Random(task.id).choice(texts or [(1, "nothing")])
            self.question = f"\nQuestion: what does element [{number}] say?"
            self.judge({"question": self.question.strip(), "reference": words})

    def _shown(self) -> str:
        return f"{super()._shown()}{self.question}"


# --- rewards --------------------------------------------------------------------------------------------------------


def tool(episode: Episode, info: dict[str, Any]) -> float:
    """1 if the first reply calls the tools of the script."""
    calls = episode.turns[0].calls if episode.turns else []
    return float([call.name for call in calls] == [each["name"] for each in info["wanted"]])


def arguments(episode: Episode, info: dict[str, Any]) -> float:
    """Share of the script's calls that the first reply makes with the same arguments."""
    calls = episode.turns[0].calls if episode.turns else []
    return sum(map(same, calls, info["wanted"])) / len(info["wanted"])


@reward(costs=["engine"], required=True, bounds=(0, 1))
async def understood(
    task: Task,
    episode: Episode,
    info: dict[str, Any],
    *,
    judge: Judge,
    rubric: str = "It says what the reference says.",
    read_blob: Callable[[str], bytes],
) -> Scored:
    """The grade of a model for the answer to the question, given the words of the page."""
    asked = [{"role": "user", "content": info["question"]}]
    own = msgspec.structs.replace(task, instruction=asked, data={"answer": info["reference"]})
    return await rubric_judge(own, episode, judge=judge, key="answer", rubric=rubric, read_blob=read_blob)


# --- scripts --------------------------------------------------------------------------------------------------------


def guide(task: Task, rng: random.Random, messages: list[Message]) -> Generator[Say, list[Message], None]:
    """Answers a question with the words of the element; else goes the way."""
    page = str(messages[-1]["content"])
    asked = ASKED.search(page)
    if asked is None:
        yield from narrator(task, rng, messages)
    else:
        line = re.search(rf'^ *\[{asked[1]}\] \S+ "(.*?)" @', page, re.MULTILINE)
        yield Say(f"It says {line[1] if line else 'nothing'}")
