"""Methods that ask a model about verdicts: a real HTTP server answers."""

from __future__ import annotations

import asyncio
import json
import re
from functools import cache
from queue import Queue
from tempfile import mkdtemp
from threading import Thread
from typing import Any

import msgspec

from agentrl.config.recipe import Recipe
from agentrl.curriculum import Group
from agentrl.types.task import Task
from tests.engines.http_server import serving
from tests.methods.curricula import graded, stages_learned
from tests.methods.played import curriculum, episode, tasks
from tests.methods.proofs import Method

NOISY = "rewards.appeal.judge"


class Asking(Method):
    """A method whose recipe names a judge; its control has none."""

    def _small(self, profile: str | None) -> tuple[str, ...]:
        asked = (f"{NOISY}.url={judge()}", f"{NOISY}.cache={mkdtemp(prefix='agentrl-verdicts-')}")
        return super()._small(profile) + asked if profile is None else ()


@cache
def judge() -> str:
    """Returns the URL of a judge that accepts a number in any form."""
    ready: Queue[str] = Queue()

    async def answer(path: str, body: Any) -> Any:
        said = str(body["messages"][-1]["content"])
        found = re.search(r"\b(\d+)\.0", said)
        right = found is not None and found[1] in re.findall(r"\b\d+\b(?!\.)", said)
        content = json.dumps({"score": int(right)})
        return {"choices": [{"message": {"role": "assistant", "content": content}}]}

    async def run() -> None:
        async with serving(answer) as url:
            ready.put(f"{url}/v1")
            await asyncio.Event().wait()

    Thread(target=lambda: asyncio.run(run()), daemon=True).start()
    return ready.get()


def corrected(recipe: Recipe) -> list[float]:
    """The rewards of a right answer, and of one in a form that the rule rejects, after six accepted answers, and two of
    four rejected ones that the model accepts."""
    found, task = curriculum(recipe), Task.of("t", "What is 3 + 4?", answer="7")
    verdicts = [*[(1.0, None)] * 6, *[(0.0, 1.0)] * 2, *[(0.0, 0.0)] * 2]
    members = [
        episode(f"{k}", rule, task=task, components={"checked": rule, "appeal": again})
        for k, (rule, again) in enumerate(verdicts)
    ]
    found.observe([Group("g", task, members)], 0)
    (plan,) = found.draw(tasks("t", answer="7"), 1, 8, 12, 1)
    told = msgspec.structs.replace(task, data=plan.task.data)
    return [graded(recipe, told, "7"), graded(recipe, told, "7.0")]


METHODS = [
    # 2 of 2 + 6 right answers were rejected: 1/4, and 1/4 - 1.
    Asking(
        "noisy-verifiers",
        lambda run: [each.task.data.get("false_negative") for each in run.played],
        corrected,
        [0.25, -0.75],
        sized=("warm_start.steps=150",),
        warmed=None,
        learns=stages_learned,
    ),
]
