"""Episodes made by hand, for reward functions to look at."""

from __future__ import annotations

from typing import Any

import msgspec

from agentrl.types.episode import CallRecord, Episode, Node, Turn
from agentrl.types.task import Task


def call(name: str = "search", result: str = "", outcome: Any = "ok", **arguments: Any) -> CallRecord:
    """A call of a tool and what came of it."""
    return CallRecord(id="", name=name, arguments=arguments, outcome=outcome, result=result, duration_s=0.0)


def turn(*calls: CallRecord, text: str = "", **fields: Any) -> Turn:
    """A turn; `make_episode` numbers it."""
    return Turn(index=0, node=0, text=text, finish="stop", calls=list(calls), **fields)


def make_episode(task: Task, *turns: Turn, answer: str | None = None, tokens: int = 0, **fields: Any) -> Episode:
    """An episode of these turns, of one turn if there are none, whose first reply has `tokens` tokens."""
    numbered = [
        msgspec.structs.replace(one, index=index, node=index + 1)
        for index, one in enumerate(turns or [turn()] * (tokens > 0))
    ]
    nodes = [Node(parent=-1, kind="prompt", token_ids=[1])]
    nodes += [Node(parent=one.index, kind="sampled", token_ids=[]) for one in numbered]
    if numbered:
        nodes[1] = msgspec.structs.replace(nodes[1], token_ids=[2] * tokens)
    return Episode(id="e", group_id="g", task=task, status="done", turns=numbered, nodes=nodes, answer=answer, **fields)
