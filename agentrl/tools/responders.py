"""Messages of an episode's environments: opening, answers to replies, and `info` at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.chat.formats.parser import Reply
from agentrl.tools.base import Environment, Observation, ToolResult
from agentrl.tools.calling import called
from agentrl.types import values
from agentrl.types.errors import ToolError
from agentrl.types.parts import content
from agentrl.types.task import Message


async def openings(environments: Sequence[Environment], take: content.TakeImage | None = None) -> list[Message]:
    """Returns the opening messages in order. Plain text becomes a user message. `take`: makes parts of images."""
    shown: list[Message] = []
    for each in environments:
        if type(each).opening is Environment.opening:
            continue
        said = await called(each, each.opening)
        if isinstance(said, str):
            said = [{"role": "user", "content": said}]
        given = [said] if isinstance(said, Mapping) else said
        shown += content.messages(given, f"{type(each).__name__}.opening()", take)
    return shown


def speakers(environments: Sequence[Environment]) -> list[Environment]:
    """Returns the environments that override `respond`."""
    return [each for each in environments if type(each).respond is not Environment.respond]


async def answer_of(speaker: Environment, reply: Reply) -> Observation | None:
    """Returns an environment's answer to a reply without a tool call; a `ToolError` becomes an answer."""
    try:
        said = await called(speaker, speaker.respond, reply)
    except ToolError as error:
        return Observation(f"Error: {values.said(error)}", executed=False)
    if said is None or isinstance(said, Observation):
        return said
    given = said if isinstance(said, ToolResult) else ToolResult(said)
    return Observation(
        given.text, given.done, given.answer, given.rewards, given.images, given.points, executed=given.executed
    )


def info_of(environments: Sequence[Environment]) -> dict[str, Any]:
    """Merges the `info` of all environments, as JSON. For duplicate keys the last environment wins.

    Raises:
        ValueRefused: an `info` is not JSON.
    """
    found: dict[str, Any] = {}
    for each in environments:
        found |= _plain(each.info, type(each).__name__)
    return found


def _plain(info: Any, name: str) -> dict[str, Any]:
    remedy = 'give a dict: {"rounds": 3}'
    if not isinstance(info, Mapping):
        raise values.ValueRefused(f"info is a {type(info).__name__}", place=name, remedy=remedy)
    try:
        plain: dict[str, Any] = values.plain(dict(info), ("info",))
    except values.ValueRefused as error:
        raise values.ValueRefused(error.message, place=name, remedy=error.remedy) from None
    return plain
