"""What the environments of an episode say: its opening, their answers to replies, and what they know at its end."""

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
    """What they show first, in order. A text is a message of the user. `take`: makes parts of images."""
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


def voices(environments: Sequence[Environment]) -> list[Environment]:
    """Those that may answer a reply."""
    return [each for each in environments if type(each).respond is not Environment.respond]


async def answer_of(voice: Environment, reply: Reply) -> Observation | None:
    """What an environment answers to a reply without a tool call; a `ToolError` is an answer."""
    try:
        said = await called(voice, voice.respond, reply)
    except ToolError as error:
        return Observation(f"Error: {values.said(error)}")
    if said is None or isinstance(said, Observation):
        return said
    given = said if isinstance(said, ToolResult) else ToolResult(said)
    return Observation(given.text, given.done, given.answer, given.rewards, given.images, given.points)


def info_of(environments: Sequence[Environment]) -> dict[str, Any]:
    """What they know of the episode, as JSON. Of several with one key, the last counts.

    Raises:
        ValueRefused: `info` of one is no JSON.
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
