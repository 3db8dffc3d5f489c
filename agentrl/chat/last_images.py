"""`agent.history: {last_images: N}`: selects the images that a prompt still shows, and replaces the others by lines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agentrl.types.parts.content import Content, Part, image_parts, joined, parts_of
from agentrl.types.task import Message

LINE = "[an image, no longer shown]"
"""Replaces an image that is no longer shown."""


@dataclass(frozen=True)
class LastImages:
    """Shows the last `count` images, and those of the task, which are not counted.

    Attributes:
        task: the images of the task, by hash.
    """

    count: int
    task: Collection[str] = ()

    @classmethod
    def of(cls, count: int, instruction: Sequence[Message]) -> LastImages:
        """Returns the rule for the episodes of a task."""
        return cls(count, frozenset(part["blob"] for part in image_parts(instruction)))

    def hide(self, messages: Sequence[Message]) -> dict[int, Message]:
        """Returns the messages with too many images, by index, with lines in place of the older ones."""
        left, found = self.count, dict[int, Message]()
        for at in reversed(range(len(messages))):
            shown = sum(map(self._counts, image_parts([messages[at]])))
            if shown > left:
                found[at] = {**messages[at], "content": self._without(messages[at]["content"], shown - left)}
            left = max(0, left - shown)
        return found

    def _counts(self, part: Part) -> bool:
        return part["type"] == "image" and part["blob"] not in self.task

    def _without(self, content: Content, gone: int) -> Content:
        """Returns a content with lines in place of its first `gone` images."""
        pieces: list[Content] = []
        for part in parts_of(content):
            said: Content = [part]
            if gone and self._counts(part):
                said, gone = LINE, gone - 1
            if pieces and LINE in (said, pieces[-1]) and not any(map(_is_image, (said, pieces[-1]))):
                pieces.append("\n")
            pieces.append(said)
        return joined(*pieces)


def _is_image(piece: Content) -> bool:
    return isinstance(piece, list) and piece[0]["type"] == "image"
