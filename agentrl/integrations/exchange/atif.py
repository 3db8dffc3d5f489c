"""Trajectories of ATIF 1.8, the Agent Trajectory Interchange Format of Harbor: a file for each episode."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl.integrations.exchange.told import Origin, ToldEpisode
from agentrl.types.distribution import __version__
from agentrl.types.episode import Turn
from agentrl.types.task import Message

VERSION = "ATIF-v1.8"


def write(episodes: Iterable[ToldEpisode], out: Path, origin: Origin) -> None:
    """Writes `ID.json` for each episode, with `_` for the slashes of its id; behind a name that is taken, a number."""
    out.mkdir()
    taken: Counter[str] = Counter()
    for each in episodes:
        name = each.episode.id.replace("/", "_").replace("#", "_")
        taken[name] += 1
        number = f"#{taken[name]}" if taken[name] > 1 else ""
        (out / f"{name}{number}.json").write_text(json.dumps(trajectory(each, origin), ensure_ascii=False, indent=1))


def trajectory(told: ToldEpisode, origin: Origin) -> dict[str, Any]:
    """The trajectory of an episode. A result is a part of the step whose call it answers."""
    episode, steps = told.episode, list[dict[str, Any]]()
    for message, turn in told.said:
        if message["role"] == "tool" and steps and steps[-1]["source"] == "agent":
            steps[-1].setdefault("observation", {"results": []})["results"].append(_result(message))
        else:
            steps.append({"step_id": len(steps) + 1, **_step(message, turn, told)})
    if steps and episode.created_at:
        begun = datetime.datetime.fromtimestamp(episode.created_at, datetime.UTC)
        steps[0]["timestamp"] = begun.isoformat()
    sampled = [turn for _, turn in told.said if turn is not None]
    final = {
        "total_completion_tokens": sum(len(episode.nodes[turn.node].token_ids) for turn in sampled),
        "total_steps": len(steps),
        "extra": {"reward": episode.reward, "components": episode.components, "status": episode.status},
    }
    agent = {"name": origin.recipe, "version": __version__, "model_name": origin.model}
    return {
        "schema_version": VERSION,
        "session_id": origin.run,
        "trajectory_id": episode.id,
        "agent": agent | ({"tool_definitions": told.tools} if told.tools else {}),
        "steps": steps,
        "final_metrics": final,
        "extra": {"task": episode.task.id, "stop": episode.stop},
    }


def _step(message: Message, turn: Turn | None, told: ToldEpisode) -> dict[str, Any]:
    role = message["role"]
    if turn is None:
        source = {"system": "system", "developer": "system"}.get(role, "user")
        kept = {} if role in ("system", "user") else {"extra": {"role": role}}
        return {"source": source, "message": message["content"], **kept}
    step: dict[str, Any] = {"source": "agent", "message": message["content"]}
    if thought := message.get("reasoning_content"):
        step["reasoning_content"] = thought
    if calls := message.get("tool_calls"):
        step["tool_calls"] = [
            {
                "tool_call_id": call["id"],
                "function_name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }
            for call in calls
        ]
    node = told.episode.nodes[turn.node]
    metrics: dict[str, Any] = {"completion_tokens": len(node.token_ids), "completion_token_ids": list(node.token_ids)}
    if node.logprobs is not None:
        metrics["logprobs"] = list(node.logprobs)
    if turn.reward is not None:
        metrics["extra"] = {"reward": turn.reward}
    return step | {"metrics": metrics, "llm_call_count": 1}


def _result(message: Message) -> dict[str, Any]:
    id = message.get("tool_call_id")
    if id:
        return {"content": message["content"], "source_call_id": id}
    named = {"name": message["name"]} if "name" in message else {}
    return {"content": message["content"], "extra": {"role": "tool", **named}}
