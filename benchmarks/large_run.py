"""Synthetic runs of any size, valid as `agentrl check` has it: for measurements of what reads runs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.store import RunDir
from agentrl.types.episode import CallRecord, Episode, ErrorRecord, Node, Turn, VersionSpan
from agentrl.types.task import Task

GROUP = 8
RARE = "zanzibar"
"""A word of one turn in a thousand."""
_TOOLS = ("search", "read", "write", "shell", "answer")
_TEXTS = 4096
"""Different texts of a run; each turn adds words of its own."""
_RECIPE = {
    "name": "synthetic",
    "tasks": "./task.py:tasks",
    "rewards": {"exact_match": {}},
    "credit": {"use": "gigpo"},
}


def ready(folder: Path, episodes: int, turns: int) -> Path:
    """Writes a run into a folder, unless an earlier call has written all of it there. Returns where it is."""
    path = folder / f"run-{episodes}x{turns}"
    if not (path / "run.json").exists():
        begun = path.with_name(f"{path.name}.part")
        shutil.rmtree(begun, ignore_errors=True)
        write(begun, episodes, turns)
        begun.rename(path)
    RunDir.open(path).close()  # an index of an older format is made anew
    return path.resolve()


def write(
    path: Path, episodes: int, turns: int, *, characters: int = 1000, tokens: int = 100, groups_at_once: int = 32
) -> None:
    """Writes a run.

    Args:
        characters, tokens: of a turn.
        groups_at_once: groups of an iteration.
    """
    draw = random.Random(7)
    ids = [f"train/{k // GROUP}#{k % GROUP}" for k in range(episodes)]
    with RunDir.create(path, {"recipe": _RECIPE, "base": str(path), "planned": ids, "finished": True}) as run:
        for k, episode in enumerate(_episodes(draw, ids, turns, characters, tokens, groups_at_once)):
            run.add(episode)
            if episode.scored:
                worth = [draw.gauss(0.0, 0.5) for _ in episode.turns]
                episodewise = [0.3 * value for value in worth]
                parts = {"episode": episodewise, "step": [a - b for a, b in zip(worth, episodewise, strict=True)]}
                run.add_credit(episode.id, "gigpo", worth, parts, iteration=episode.iteration)
            if episode.error is not None:
                run.add_failure({"kind": episode.error.kind, "message": "gone", "episode": episode.id, "final": True})
            if (k + 1) % (groups_at_once * GROUP) == 0 or k + 1 == episodes:
                run.add_metrics(_metrics(draw, episode.iteration, (k + 1) / episodes, turns))
                if episode.iteration % 10 == 0:
                    run.add_metrics({"split": "eval", "iteration": episode.iteration, "success": (k + 1) / episodes})


def _metrics(draw: random.Random, iteration: int, done: float, turns: int) -> dict[str, Any]:
    return {
        "iteration": iteration + 1,
        "success": done * 0.8 + draw.random() * 0.1,
        "reward": done * 0.7 + draw.random() * 0.1,
        "turns": turns + draw.random(),
        "sampled_tokens": 1000 * turns,
        "entropy": 2 - done + draw.random() * 0.1,
        "kl_ref": done * 0.05,
        "grad_norm": draw.random(),
        "loss": draw.gauss(0, 0.1),
        "zero_variance_groups": draw.random() * 0.3,
        "truncated": draw.random() * 0.1,
        "failed": draw.randrange(3),
    }


def _episodes(
    draw: random.Random, ids: list[str], turns: int, characters: int, tokens: int, groups_at_once: int
) -> Iterator[Episode]:
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 9))) for _ in range(20_000)]
    texts = [
        " ".join(draw.choices(words, k=characters // 8))[: characters // 2].ljust(characters // 2, "x")
        for _ in range(_TEXTS)
    ]
    logprobs = [[round(-draw.expovariate(2.0), 4) for _ in range(tokens)] for _ in range(64)]
    for k, id in enumerate(ids):
        group = k // GROUP
        iteration = group // groups_at_once
        nodes = [Node(parent=-1, kind="prompt", token_ids=_ids(draw, 60))]
        spoken = []
        for index in range(turns):
            said = f"{draw.choice(texts)} {draw.choice(words)}" + f" {RARE}" * (draw.random() < 0.001)
            spans = [VersionSpan(iteration, 0, tokens)]
            sampled = Node(
                parent=len(nodes) - 1,
                kind="sampled",
                token_ids=_ids(draw, tokens),
                logprobs=draw.choice(logprobs),
                versions=spans,
            )
            nodes.append(sampled)
            call = CallRecord(
                id=f"c{index}",
                name=draw.choice(_TOOLS),
                arguments={"query": draw.choice(words), "at": index},
                outcome="error" if draw.random() < 0.02 else "ok",
                result=draw.choice(texts),
                duration_s=0.01,
            )
            observation = {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": call.result}
            turn = Turn(
                index=index,
                node=len(nodes) - 1,
                text=said,
                finish="stop",
                state=f"room {draw.randrange(12)}",
                calls=[call],
                observations=[observation],
                generate_s=0.5,
                tools_s=0.01,
            )
            spoken.append(turn)
            nodes.append(Node(parent=len(nodes) - 1, kind="observation", token_ids=_ids(draw, 20)))
        failed = draw.random() < 0.005
        right = draw.random() < (k + 1) / len(ids)
        yield Episode(
            id=id,
            group_id=f"train/{group}",
            task=Task.of(f"task-{group % 500}", f"Find {words[group % len(words)]}.", answer=words[group % len(words)]),
            status="infra_error" if failed else "done",
            iteration=iteration,
            prompt=[{"role": "user", "content": f"Find {words[group % len(words)]}."}],
            nodes=nodes,
            turns=spoken,
            answer=None if failed else draw.choice(words),
            stop="" if failed else "answer",
            components={} if failed else {"exact_match": float(right)},
            reward=None if failed else float(right),
            error=ErrorRecord(kind="SandboxLost", message="gone", stage="tools") if failed else None,
            timings={"total": turns * 0.5 + draw.random()},
            created_at=1_790_000_000.0 + k,
        )


def _ids(draw: random.Random, count: int) -> list[int]:
    start = draw.randrange(1000, 30_000)
    return list(range(start, start + count))
