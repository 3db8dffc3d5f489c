"""An evaluation log of inspect_ai (JSON, version 2): `inspect view` and `read_eval_log` read it."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl.integrations.exchange.told import Origin, ToldEpisode
from agentrl.types.distribution import DISTRIBUTION, __version__
from agentrl.types.episode import Episode
from agentrl.types.figures.sums import total
from agentrl.types.task import Message


def write(episodes: Iterable[ToldEpisode], out: Path, origin: Origin) -> None:
    """Writes the log of all episodes. Each is a sample; the tries of a task are its epochs."""
    out.write_text(json.dumps(log(episodes, origin), ensure_ascii=False))


def log(episodes: Iterable[ToldEpisode], origin: Origin) -> dict[str, Any]:
    """The log, as `EvalLog` takes it."""
    tries: Counter[str] = Counter()
    samples, values = [], dict[str, list[float]]()
    for each in episodes:
        tries[each.episode.task.id] += 1
        samples.append(_sample(each, tries[each.episode.task.id], origin))
        for name, value in _values(each.episode).items():
            values.setdefault(name, []).append(value)
    created = datetime.datetime.fromtimestamp(origin.created_at, datetime.UTC).isoformat()
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "eval_id": origin.run,
            "run_id": origin.run,
            "task_id": origin.recipe,
            "created": created,
            "task": origin.recipe,
            "dataset": {"name": origin.recipe, "samples": len(tries), "sample_ids": list(tries)},
            "model": origin.model,
            "config": {"epochs": max(tries.values(), default=1)},
            "packages": {DISTRIBUTION: __version__},
        },
        "plan": {"name": "agentrl", "steps": [{"solver": "agentrl"}]},
        "results": {
            "total_samples": len(samples),
            "completed_samples": sum(sample["error"] is None for sample in samples),
            "scores": [_score(name, found) for name, found in values.items()],
        },
        "stats": {"started_at": created, "completed_at": created},
        "samples": samples,
    }


def _score(name: str, found: list[float]) -> dict[str, Any]:
    metric = {"mean": {"name": "mean", "value": total(found) / len(found)}}
    return {"name": name, "scorer": name, "scored_samples": len(found), "metrics": metric}


def _values(episode: Episode) -> dict[str, float]:
    reward = {} if episode.reward is None else {"reward": episode.reward}
    return reward | {name: value for name, value in episode.components.items() if value is not None}


def _sample(told: ToldEpisode, epoch: int, origin: Origin) -> dict[str, Any]:
    episode = told.episode
    messages = [_message(message, origin.model) for message in told.messages]
    opening = len(episode.prompt)
    last = next((message for message in reversed(messages[opening:]) if message["role"] == "assistant"), None)
    choices = (
        [] if last is None else [{"message": last, "stop_reason": "tool_calls" if last.get("tool_calls") else "stop"}]
    )
    wrong = episode.error
    return {
        "id": episode.task.id,
        "epoch": epoch,
        "uuid": episode.id,
        "input": messages[:opening],
        "target": "",
        "messages": messages,
        "output": {"model": origin.model, "choices": choices},
        "scores": {
            name: {"value": value, "answer": episode.answer, "explanation": episode.notes.get(name)}
            for name, value in _values(episode).items()
        },
        "metadata": {"status": episode.status, "stop": episode.stop, "tools": told.tools},
        "total_time": episode.timings.get("total"),
        "error": None
        if wrong is None
        else {
            "message": wrong.message,
            "traceback": wrong.traceback,
            "traceback_ansi": wrong.traceback,
        },
    }


def _message(message: Message, model: str) -> dict[str, Any]:
    role, content = message["role"], message["content"]
    if role == "tool":
        kept = {key: message[key] for key in ("tool_call_id",) if key in message}
        return {"role": role, "content": content, "function": message.get("name"), **kept}
    if role != "assistant":
        return {"role": "system" if role == "developer" else role, "content": content}
    made: dict[str, Any] = {"role": role, "content": content, "source": "generate", "model": model}
    if thought := message.get("reasoning_content"):
        made["content"] = [{"type": "reasoning", "reasoning": thought}, {"type": "text", "text": content}]
    if calls := message.get("tool_calls"):
        made["tool_calls"] = [
            {
                "id": call["id"],
                "function": call["function"]["name"],
                "arguments": call["function"]["arguments"],
                "type": "function",
            }
            for call in calls
        ]
    return made
