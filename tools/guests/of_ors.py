"""Open Reward Standard: tasks and tools of an ORS server. SPEC: url, env (name on the server), split, api_key.

The reward is the sum over tool calls; `finished` ends the episode. A server of openreward may have a terminal tool,
hidden from the model, that receives the reply without tool calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import urllib.request
from collections.abc import Awaitable, Iterator
from typing import Any

from guest import Away, Model, Played, Row, Spec, Unusable, calls_of, inlined, share, text_of

share("ors.client")


def tasks(spec: Spec) -> Iterator[Row]:
    """Yields the tasks of a split."""
    yield from asyncio.run(_tasks(spec))


def play(spec: Spec, index: int, model: Model) -> Played:
    """Plays one task; returns the sum of the rewards of its calls."""
    return asyncio.run(_play(spec, index, model))


async def _tasks(spec: Spec) -> list[Row]:
    env = _env(spec)
    found = await _asked(spec, env.list_tasks(_split(spec)))
    name = spec["env"].replace("/", "-")
    return [
        {"id": f"{name}-{index}", "instruction": f"Task {index} of {name}.", "data": {"task": _spec_of(task)}}
        for index, task in enumerate(found)
    ]


async def _play(spec: Spec, index: int, model: Model) -> Played:
    from ors.client import ToolCallError

    env = _env(spec)
    task = (await _asked(spec, env.list_tasks(_split(spec))))[index]
    total, last = 0.0, ""
    async with contextlib.AsyncExitStack() as stack:
        session = await _asked(spec, stack.enter_async_context(env.session(task=task)))
        prompt = await _asked(spec, session.get_prompt())
        tools = [
            {
                "type": "function",
                "function": {
                    "name": each.name,
                    "description": each.description,
                    "parameters": inlined(dict(each.input_schema or {"type": "object", "properties": {}})),
                },
            }
            for each in await _asked(spec, session.list_tools())
        ]
        messages, finished = [{"role": "user", "content": _text(prompt)}], False
        while not finished:
            reply = await asyncio.to_thread(model.reply, messages, tools, {"reward": total})
            if reply is None:
                break
            messages.append(reply)
            last = reply.get("content") or last
            if not (calls := list(calls_of(reply))):
                total += await _ended(spec, env, session, reply.get("content") or "")
                break
            for id, name, given in calls:
                if finished:
                    break  # calls after the end must not earn rewards
                try:
                    reward, done, said = await _asked(spec, _called(session, name, given), but=ToolCallError)
                    total, finished = total + reward, finished or done
                except ToolCallError as error:  # unknown tool or wrong arguments: the model's error
                    said = f"{type(error).__name__}: {error}"[:2000]
                messages.append({"role": "tool", "tool_call_id": id, "content": said})
    return {"reward": total}, last


async def _ended(spec: Spec, env: Any, session: Any, text: str) -> float:
    """Returns the reward of a reply without calls: from the terminal tool, else 0."""
    terminal = await _asked(spec, asyncio.to_thread(_terminal, spec, env))
    if terminal is None:
        return 0.0
    given = {} if terminal.get("arg") is None else {terminal["arg"]: text}
    reward: float = (await _asked(spec, _called(session, terminal["name"], given)))[0]
    return reward


def _terminal(spec: Spec, env: Any) -> dict[str, Any] | None:
    """Returns the terminal tool, which the client of ors-sdk omits; None if the environment has none."""
    headers = {"Authorization": f"Bearer {spec['api_key']}"} if spec.get("api_key") else {}
    name = getattr(env, "name", spec["env"])
    request = urllib.request.Request(f"{spec['url'].rstrip('/')}/{name}/tools", headers=headers)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as said:
        terminal: dict[str, Any] | None = json.loads(said.read()).get("terminal_tool")
        return terminal


async def _called(session: Any, name: str, given: dict[str, Any]) -> tuple[float, bool, str]:
    """Calls a tool; returns its reward, True at the end of the episode, and its text."""
    output = await session.call_tool(name, given)
    reward = float(output.reward or 0.0)
    if not math.isfinite(reward):
        raise ValueError(f"its reward is {reward}")
    return reward, bool(output.finished), _text(output.blocks)


def _env(spec: Spec) -> Any:
    from ors.client import AsyncORS

    if "url" not in spec or "env" not in spec:
        raise Unusable("ORS needs spec: {url: http://..., env: NAME}")
    client = AsyncORS(base_url=spec["url"], api_key=spec.get("api_key"))
    env = client.environment(spec["env"])
    env.owner = client  # closes the connections when collected
    return env


def _split(spec: Spec) -> Any:
    return spec.get("split", "train")


def _spec_of(task: Any) -> Any:
    held = getattr(task, "task_spec", None) or getattr(task, "spec", None) or task
    return dict(held) if isinstance(held, dict) else text_of(held)


def _text(blocks: Any) -> str:
    return "\n".join(getattr(block, "text", "[image]") for block in blocks)


async def _asked(spec: Spec, call: Awaitable[Any], but: type[Exception] | tuple[()] = ()) -> Any:
    """Awaits the server's answer. Converts errors to `Away`, including those of tools, except types in `but`."""
    try:
        return await call
    except but:
        raise
    except Exception as error:
        raise Away(f"the ORS server {spec['url']} failed: {type(error).__name__}: {error}") from None
