"""Plausible multi-turn episodes, with branches, made by hand."""

from __future__ import annotations

import random
from typing import Any

from agentrl.types.episode import Branch, CallRecord, Episode, ErrorRecord, Node, Status, Turn, VersionSpan
from agentrl.types.task import Task

WORDS = ["open", "the", "red", "box", "and", "look", "for", "a", "small", "key", "behind", "it", "then", "go", "north"]


def make_episode(
    id: str,
    *,
    seed: int = 0,
    turns: int = 4,
    status: Status = "done",
    group: str = "g0",
    iteration: int = 0,
    branch: bool = False,
    blob: str | None = None,
    **fields: Any,
) -> Episode:
    """An episode of `turns` turns; `branch` starts a new root before the last of them, as a context edit does."""
    draw = random.Random(f"{id}:{seed}")
    nodes = [_rendered(draw, -1, "prompt", 24)]
    spoken: list[Turn] = []
    for index in range(turns):
        if branch and index == turns - 1:
            nodes.append(_rendered(draw, -1, "prompt", 30))
        count = draw.randint(4, 14)
        logprobs = [-draw.random() * draw.choice([0.05, 0.5, 4.0]) for _ in range(count)]
        ids = [draw.randrange(4000) for _ in range(count)]
        spans = [VersionSpan(iteration, 0, 2), VersionSpan(iteration + 1, 2, count)]
        nodes.append(Node(parent=len(nodes) - 1, kind="sampled", token_ids=ids, logprobs=logprobs, versions=spans))
        text = " ".join(draw.choice(WORDS) for _ in range(count))
        call = CallRecord(
            id=f"c{index}",
            name=draw.choice(["look", "take", "search"]),
            arguments={"query": draw.choice(WORDS), "limit": 3},
            outcome="error" if draw.random() < 0.15 else "ok",
            result=f"You see {draw.choice(WORDS)} and {draw.choice(WORDS)}. </script> <b>not markup</b>",
            duration_s=draw.random() / 10,
            blob=blob if index == 0 else None,
            dropped=1200 if blob and index == 0 else 0,
        )
        message = {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": call.result}
        turn = Turn(
            index=index,
            node=len(nodes) - 1,
            text=text,
            finish="stop",
            state=f"room {draw.randrange(3)}",
            calls=[call],
            observations=[message],
            rewards={"progress": round(draw.random(), 2)},
            generate_s=draw.random(),
            tools_s=call.duration_s,
        )
        spoken.append(turn)
        nodes.append(_rendered(draw, len(nodes) - 1, "observation", 8))
    failed = status in ("infra_error", "user_error")
    scores: dict[str, float | None] = {} if failed else {"found": round(draw.random(), 2), "format": 1.0}
    record: dict[str, Any] = {
        "prompt": [
            {"role": "system", "content": "You explore a house."},
            {"role": "user", "content": "Find the key. Answer with the room it is in."},
        ],
        "answer": None if failed else draw.choice(["kitchen", "cellar"]),
        "stop": "" if failed else draw.choice(["answer", "turns"]),
        "components": scores,
        "reward": None if failed else scores["found"],
        "branches": [Branch(turn=turns - 1, reason="rewrite", at_token=24)] if branch else [],
        "error": ErrorRecord(kind="SandboxLost", message="gone", stage="tools") if failed else None,
        "timings": {"sandbox": 0.1, "generate": 1.5, "tools": 0.2, "total": 1.8 + draw.random()},
        "created_at": 1_790_000_000.0 + draw.random() * 1000,
    }
    task = Task.of(f"task-{group}", "Find the key.", answer="kitchen")
    record |= fields
    return Episode(
        id=id, group_id=group, task=task, status=status, iteration=iteration, nodes=nodes, turns=spoken, **record
    )


def _rendered(draw: random.Random, parent: int, kind: Any, count: int) -> Node:
    return Node(parent=parent, kind=kind, token_ids=[draw.randrange(4000) for _ in range(count)])
