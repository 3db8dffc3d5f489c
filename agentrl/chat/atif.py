"""Trajectories of ATIF, the Agent Trajectory Interchange Format of Harbor (versions 1.0 to 1.8), as conversations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.chat.foreign import ROLES, Talk, tool_definitions
from agentrl.types.errors import TaskError
from agentrl.types.task import Message

_SOURCES = ("system", "user", "agent")
_VERSION = re.compile(r"(ATIF-)?v?1(\.\d+)*")


def is_trajectory(row: Mapping[str, Any]) -> bool:
    """Returns True for a trajectory of any version; some writers leave out `ATIF-`."""
    version = row.get("schema_version")
    return isinstance(version, str) and (version.startswith("ATIF-") or {"agent", "steps"} <= row.keys())


def talk_of(trajectory: Mapping[str, Any]) -> Talk:
    """Returns the conversation of a trajectory and its agent's tools.

    Steps that were copied from another trajectory, and those that no model spoke (`llm_call_count: 0`), have weight 0.
    A step of the agent without a call is one reply with a step of the agent right after it:
    agents log the parts of a reply apart. A result without content that refers to the trajectory of a subagent is left
    out if it answers no call, or if no step of the agent follows.

    Raises:
        TaskError: a step is wrong, or what a call returned is missing; has no place.
    """
    if not _VERSION.fullmatch(str(trajectory["schema_version"])):
        raise TaskError(f"schema_version is {trajectory['schema_version']!r}", remedy="ATIF-v1.0 to ATIF-v1.8 are read")
    steps = trajectory.get("steps")
    if not isinstance(steps, list) or not steps:
        raise TaskError(f"steps is {steps!r:.60}", remedy="a trajectory of ATIF has a list of steps")
    messages: list[Message] = []
    by_agent = [k for k, step in enumerate(steps) if isinstance(step, Mapping) and step.get("source") == "agent"]
    for index, step in enumerate(steps):
        for message in _of_step(step, f"steps[{index}]", followed=bool(by_agent) and index < by_agent[-1]):
            if messages and _are_one(messages[-1], message):
                messages[-1] = _joined(messages[-1], message)
            else:
                messages.append(message)
    agent = trajectory.get("agent")
    given = agent.get("tool_definitions") if isinstance(agent, Mapping) else None
    return Talk(messages, tool_definitions(given, "agent.tool_definitions") if given else None)


def _are_one(said: Message, message: Message) -> bool:
    both = said["role"] == message["role"] == "assistant"
    return both and not said.get("tool_calls") and said.get("weight") == message.get("weight")


def _joined(said: Message, message: Message) -> Message:
    made = said | message
    for key in ("content", "reasoning_content"):
        texts = [text for each in (said, message) if (text := each.get(key))]
        if all(isinstance(text, str) for text in texts):
            made |= {key: "\n\n".join(texts)} if texts else {}
        else:  # parts
            made[key] = [part for text in texts for part in (_parts(text))]
    return made


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _of_step(step: Any, where: str, *, followed: bool) -> Iterator[Message]:
    if not isinstance(step, Mapping) or step.get("source") not in _SOURCES:
        raise TaskError(f"{where} is {step!r:.60}", remedy=f"a step has a source, one of {', '.join(_SOURCES)}")
    content = _content(step.get("message"))
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, Mapping) else None
    if step["source"] != "agent":
        if content or not results:
            yield {"role": _role(step, step["source"]), "content": content}
        calls: list[dict[str, Any]] = []
    else:
        calls = [_call(call, where) for call in step.get("tool_calls") or ()]
        message: Message = {"role": "assistant", "content": content}
        if step.get("reasoning_content"):
            message["reasoning_content"] = step["reasoning_content"]
        if calls:
            message["tool_calls"] = calls
        if step.get("is_copied_context") or step.get("llm_call_count") == 0:
            message["weight"] = 0
        yield message
    names = {call["id"]: call["function"]["name"] for call in calls}
    if not followed and any(map(_lies_elsewhere, results or ())):
        return  # no reply that is learned follows
    for result in results or ():
        if not isinstance(result, Mapping):
            raise TaskError(f"a result of {where} is {result!r:.60}", remedy="{source_call_id, content}")
        if _lies_elsewhere(result):
            if calls or result.get("source_call_id"):
                raise TaskError(
                    f"a result of {where} has no content: it refers to the trajectory of a subagent",
                    remedy="put what the agent was shown into its content",
                )
            continue  # a note of the log, which no model was shown
        id, said = result.get("source_call_id"), _content(result.get("content"))
        # A result that names no call was shown to the model as a message, unless its step has calls.
        if id:
            yield {"role": "tool", "tool_call_id": id, "content": said, **({"name": names[id]} if id in names else {})}
        else:
            yield {"role": _role(result, "tool" if calls else "user"), "content": said, **_name(result)}


def _lies_elsewhere(result: Any) -> bool:
    """Returns True if the content of a result is in the trajectory of a subagent."""
    return isinstance(result, Mapping) and result.get("content") is None and bool(result.get("subagent_trajectory_ref"))


def _role(part: Mapping[str, Any], usual: str) -> str:
    """The role that our own export notes where the format has none for it."""
    extra = part.get("extra")
    noted = extra.get("role") if isinstance(extra, Mapping) else None
    return noted if noted in ROLES else usual


def _name(result: Mapping[str, Any]) -> dict[str, str]:
    extra = result.get("extra")
    name = extra.get("name") if isinstance(extra, Mapping) else None
    return {"name": name} if isinstance(name, str) else {}


def _call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping) or not isinstance(call.get("function_name"), str):
        raise TaskError(f"a call of {where} is {call!r:.60}", remedy="{tool_call_id, function_name, arguments}")
    function = {"name": call["function_name"], "arguments": call.get("arguments")}
    return {"id": call.get("tool_call_id"), "type": "function", "function": function}


def _content(given: Any) -> Any:
    return "" if given is None else given
