"""Openings: messages and tools shown to a policy before its first reply. They are equal in a group: it is one task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from agentrl.types.episode import POLICY, Episode
from agentrl.types.parts.content import text_of
from agentrl.types.task import Message

_SPEAKER = 8
"""Characters of a mark that identify the speaker."""


class Opening(NamedTuple):
    """Messages and tools shown to the policy of an episode before its first reply.

    Attributes:
        speaker: role of the first turn. If the first speaker is drawn (the seats of a game), openings are equal among
            episodes with the same one.
        messages: their texts. Of an image only the size counts: two screenshots of one page may differ.
        tools: definitions of the callable tools, as JSON.
    """

    speaker: str
    messages: list[str]
    tools: str

    @property
    def mark(self) -> str:
        """Text that is equal for equal openings; its first characters are equal for equal speakers."""
        return _digest([self.speaker], _SPEAKER) + _digest([*self.messages, self.tools], 24)


def opening_of(episode: Episode) -> Opening | None:
    """Returns the opening of an episode; None: its policy has not spoken.

    If another policy spoke before it (a user, an opponent), its messages depend on that one: only the system messages
    and tools count.
    """
    own = episode.own_turns
    if not own:
        return None
    context = episode.contexts.get(own[0].context)
    prompt, tools = (episode.prompt, episode.tools) if context is None else (context.prompt, context.tools)
    addressed = episode.policy_of(episode.turns[0]) != POLICY
    return Opening(
        f"{own[0].agent}, addressed" if addressed else str(own[0].agent),  # an earlier run may hold a number
        [_text(each) for each in prompt if not addressed or each.get("role") == "system"],
        json.dumps(tools, sort_keys=True, ensure_ascii=False),
    )


def speaker_in(mark: str) -> str:
    """Returns the part of a mark that identifies the speaker."""
    return mark[:_SPEAKER]


def groups_that_differ(marks: Iterable[tuple[str, str | None]]) -> set[str]:
    """Returns the groups in which openings of one speaker differ.

    Args:
        marks: of episodes: the group, and the opening's mark.
    """
    first: dict[tuple[str, str], str] = {}
    known = ((group, mark) for group, mark in marks if mark is not None)
    return {group for group, mark in known if first.setdefault((group, speaker_in(mark)), mark) != mark}


def parting(one: Opening, other: Opening) -> str:
    """Describes the first place where two openings differ."""
    pairs = enumerate(zip(one.messages, other.messages, strict=False))
    for at, (mine, its) in pairs:
        if mine != its:
            return f"message {at} is {_around(mine, its)}, and {_around(its, mine)}"
    if len(one.messages) != len(other.messages):
        return f"they are {len(one.messages)} messages, and {len(other.messages)}"
    return f"the tools are {_around(one.tools, other.tools)}, and {_around(other.tools, one.tools)}"


def offers_nothing(episode: Episode) -> bool:
    """Returns True if the policy could not call a tool in any of its turns."""
    offered = [episode.tools, *(each.tools for each in episode.contexts.values() if each.policy == POLICY)]
    return all(each == [] for each in offered) and not any(turn.tools for turn in episode.turns)


def _around(text: str, other: str) -> str:
    """Returns the part of a text around its first difference from another one."""
    at = next((k for k, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    return repr(text[max(0, at - 20) : at + 40])


def _text(message: Message) -> str:
    said = text_of(message.get("content"), lambda part: f"[image {part.get('width')}x{part.get('height')}]")
    return f"{message.get('role')}: {said}"


def _digest(texts: list[str], length: int) -> str:
    joined = "\0".join(texts).encode(errors="replace")  # as in records, for invalid text
    return hashlib.blake2b(joined, digest_size=length // 2).hexdigest()
