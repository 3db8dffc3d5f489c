"""R1-Router on a world that does not exist: three bases of its articles, and each step of a question as a task."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.registry.references import load_object
from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.session import Session
from agentrl.tools.builtin.search.document import Document
from agentrl.types.task import Message, Task

_FICTION = "../../search-qa/fiction.py"
_world = load_object(f"{_FICTION}:world", Path(__file__).parent)
_questions = load_object(f"{_FICTION}:questions", Path(__file__).parent)

SHELVES = {"people": ("born_in",), "works": ("author", "seat")}
"""By base, the relations that tell what its articles are about. The others are places."""


def base_of(title: str) -> str:
    """Returns the base that has the article."""
    facts = _world().facts
    return next((base for base, kinds in SHELVES.items() if any(title in facts[kind] for kind in kinds)), "places")


def places() -> list[Document]:
    """Articles about countries, cities and rivers."""
    return _shelf("places")


def people() -> list[Document]:
    """Articles about people."""
    return _shelf("people")


def works() -> list[Document]:
    """Articles about novels and companies."""
    return _shelf("works")


def _shelf(base: str) -> list[Document]:
    return [document for document in _world().documents if base_of(document.title) == base]


def questions(**args: Any) -> Iterator[Task]:
    """The questions of `fiction.py` as whole episodes, with their gold steps."""
    for task in _questions(**args):
        steps = [{"query": hop["query"], "base": base_of(hop["query"])} for hop in task.data["hops"]]
        yield Task.of(task.id, task.instruction, **task.data, steps=steps, scored=["base_routing", "answer_recall"])


def steps(n: int = 512, **args: Any) -> Iterator[Task]:
    """The first `n` steps of the questions: each shows the gold steps before it. The last one is the answer."""
    return islice((step for task in questions(n=n, **args) for step in _steps(task)), n)


def _steps(task: Task) -> Iterator[Task]:
    gold, text = task.data["steps"], {document.id: document.text for document in _world().documents}
    known = [f"{step['query']} ({step['base']}): {text[id]}" for step, id in zip(gold, task.data["gold"], strict=True)]
    for at in range(len(gold) + 1):
        scored = ["base_routing"] if at < len(gold) else ["base_routing", "answer_recall"]
        data = {**task.data, "steps": gold[at : at + 1], "known": known[:at], "scored": scored}
        yield Task.of(f"{task.id}/{at}", task.instruction, **data)


class StepAgent(ToolAgent):
    """Shows the question and what the steps so far have found, in a new prompt for each step.

    A task with `known` begins after these steps, and ends after one more.
    """

    def opening(self, session: Session, system: str | None) -> list[Message]:
        """Returns the system message and the prompt of the first step."""
        head = [{"role": "system", "content": system}] if system else []
        return [*head, _prompt(session.task, session.task.data.get("known", []))]

    async def run(self, session: Session) -> None:
        """Runs steps until an answer, a limit, or the end of the only step."""
        known, single = list(session.task.data.get("known", [])), "known" in session.task.data
        head = session.opening[:-1]
        while session.outcome is None:
            await self.take_turn(session)
            if session.outcome is None and single:
                session.finish("step", None)
            elif session.outcome is None:
                for call in session.turns[-1].calls:
                    known.append(f"{call.arguments.get('query')} ({call.arguments.get('base')}): {call.result}")
                session.rewrite([*head, _prompt(session.task, known)])


def _prompt(task: Task, known: list[str]) -> Message:
    asked = str(task.instruction[-1]["content"])
    found = "".join(f"\n- {each}" for each in known)
    return {"role": "user", "content": f"{asked}\nFound so far:{found or ' nothing'}"}


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Takes the gold steps and answers."""
    for step in task.data["steps"]:
        yield Say(calls=[("search", {"query": step["query"], "base": step["base"]})])
    yield Say(calls=[("answer", {"text": task.data["answer"][0]})])
