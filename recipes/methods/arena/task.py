"""ARENA: questions with numbered references, and the rewards of a reply that says which of them it used."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.registry.references import load_object
from agentrl.rewards.functions.answers.comparers import normalise
from agentrl.types.episode import Episode
from agentrl.types.task import Message, Task

_FICTION = "../../search-qa/fiction.py"
_world = load_object(f"{_FICTION}:world", Path(__file__).parent)
_questions = load_object(f"{_FICTION}:questions", Path(__file__).parent)

FORM = re.compile(r"\s*<relevance>([^<]*)</relevance>\s*<analysis>[^<]*</analysis>\s*<answer>([^<]*)</answer>\s*")


def questions(references: int = 10, **args: Any) -> Iterator[Task]:
    """The questions of `fiction.py`, each with its gold articles among others, in the order of a draw.

    Args:
        references: articles that are shown.
    """
    documents = {document.id: document for document in _world().documents}
    for task in _questions(**args):
        rng, gold = random.Random(task.id), list(task.data["gold"])
        others = rng.sample(sorted(documents.keys() - set(gold)), max(0, references - len(gold)))
        shown = rng.sample([*gold, *others], len(gold) + len(others))
        listed = "\n".join(f"[{at}] {documents[id].text}" for at, id in enumerate(shown, 1))
        used = sorted(shown.index(id) + 1 for id in gold)
        asked = f"References:\n{listed}\n\nQuestion: {task.instruction[-1]['content']}"
        yield Task.of(task.id, asked, answer=task.data["answer"], used=used)


def structure(episode: Episode) -> float:
    """1 if the reply has the three parts, and nothing else."""
    return float(FORM.fullmatch(episode.turns[0].text) is not None)


def accuracy(task: Task, episode: Episode) -> float:
    """1 if the text between the answer tags equals a gold answer (SQuAD normalisation)."""
    said = re.search(r"<answer>(.*?)</answer>", episode.turns[0].text, re.DOTALL)
    return float(said is not None and normalise(said[1]) in map(normalise, task.data["answer"]))


def relevance(task: Task, episode: Episode) -> float:
    """1 if the references that are named are the right ones, 0.5 if one of them is right, else 0."""
    said = re.search(r"<relevance>(.*?)</relevance>", episode.turns[0].text, re.DOTALL)
    try:
        named = {int(each) for each in json.loads(said[1] if said else "")}
    except (ValueError, TypeError):
        return 0.0
    right = set(task.data["used"])
    return 1.0 if named == right else 0.5 if named & right else 0.0


def bonus(task: Task, episode: Episode, amount: float = 10.0) -> float:
    """`amount` if structure, answer and references are all right."""
    whole = structure(episode) + accuracy(task, episode) + relevance(task, episode) == 3.0
    return amount if whole else 0.0


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Names the right references and the answer."""
    answer = task.data["answer"][0]
    yield Say(
        f"<relevance>{task.data['used']}</relevance>\n<analysis>They say it.</analysis>\n<answer>{answer}</answer>"
    )
