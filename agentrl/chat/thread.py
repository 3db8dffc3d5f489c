"""A thread: the tokens of one conversation in a trajectory.

Sessions and demonstrations make their prompts here. A prompt extends the last reply by what was said since; where it
cannot (the context was rewritten, the tools changed), it starts a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from agentrl.chat.renderer import Renderer
from agentrl.types.engine import Completion
from agentrl.types.task import Message
from agentrl.types.trajectory import ROOT, Trajectory


class Prompt(NamedTuple):
    """The next prompt.

    Attributes:
        node: where it ends.
        tokens: all of it.
        branched_at: where it starts a branch: the number of tokens that it has in common with what was before.
        drift: why it does, where nobody asked for it.
    """

    node: int
    tokens: list[int]
    branched_at: int | None
    drift: Literal["template", "retokenisation"] | None = None


class Thread:
    """One conversation: its messages, and the nodes of its prompts and replies.

    Attributes:
        messages: all of them, replies included.
    """

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self.messages: list[Message] = []
        self._last = self._base = ROOT  # The node of the last reply; the one that the next prompt extends.
        self._unread: list[Message] = []  # What no prompt holds yet: after the base, or everything.
        self._opened: dict[int, str] = {}  # The mark of a thought that the prompt of a reply opened, by message.

    def restart(self, messages: Sequence[Message] | None = None) -> None:
        """The next prompt is rendered whole: `messages` in place of what was there, or the same under other tools."""
        if messages is not None:
            self.messages[:] = map(dict, messages)
            self._opened = {}
        self._base, self._unread = ROOT, list(self.messages)

    def add(self, messages: Sequence[Message]) -> None:
        """Messages after the last reply. They are rendered for the next prompt: what nobody reads is not recorded."""
        self.messages.extend(map(dict, messages))
        self._unread.extend(messages)

    def length(self, renderer: Renderer) -> int:
        """How many tokens the next prompt has. Nothing is recorded."""
        if self._renders(renderer):
            return len(renderer.start(self._shown()))
        base = 0 if self._base == ROOT else len(self.trajectory.tokens(self._base))
        return base + len(self._new(renderer))

    def prompt(self, renderer: Renderer) -> Prompt:
        """The prompt of the next reply."""
        if self._renders(renderer):
            return self._rendered(renderer)
        new = self._new(renderer)
        if self._base == ROOT:
            shared = None if self._last == ROOT else self.trajectory.shared_prefix(self._last, new)
            return Prompt(self.trajectory.append_whole(self._last, new), new, shared)
        at = self.trajectory.append_rendered(self._base, new) if new else self._base
        return Prompt(at, self.trajectory.tokens(at), None)

    def _renders(self, renderer: Renderer) -> bool:
        """Whether the template renders replies that are there already."""
        return renderer.history == "as_template" and self._base != ROOT

    def _rendered(self, renderer: Renderer) -> Prompt:
        """The whole conversation as the template renders it. It goes on from the tokens so far if they begin it."""
        before, tokens = self.trajectory.tokens(self._last), renderer.start(self._shown())
        shared = self.trajectory.shared_prefix(self._last, tokens)
        node = self.trajectory.append_whole(self._last, tokens)
        if shared == len(before):
            return Prompt(node, tokens, None)
        decode = renderer.tokenizer.decode
        same = decode(tokens).startswith(decode(before))
        return Prompt(node, tokens, shared, "retokenisation" if same else "template")

    def _shown(self) -> list[Message]:
        """The messages with the thoughts that prompts opened."""
        return [
            {**message, "content": self._opened[k] + message["content"]} if k in self._opened else message
            for k, message in enumerate(self.messages)
        ]

    def _new(self, renderer: Renderer) -> list[int]:
        """What the next prompt adds to the base."""
        if self._base == ROOT:
            return renderer.start(self._shown())
        sampled = self.trajectory.nodes[self._base].token_ids
        return renderer.extend(sampled, self._unread) if self._unread else []

    def adopt(self, reply: int, text: str, opened: str = "") -> None:
        """Goes on from a reply that is in the trajectory already, whatever prompt it answered.

        Args:
            opened: the mark of a thought that its prompt left open.
        """
        if opened:
            self._opened[len(self.messages)] = opened
        self._last = self._base = reply
        self._unread = []
        self.messages.append({"role": "assistant", "content": text})

    def reply(
        self, prompt: Prompt, completion: Completion, text: str, *, opened: str = "", trained: bool = True
    ) -> int:
        """Records a reply to the last prompt; its node. `opened`: the mark of a thought that the prompt left open."""
        self.adopt(self.trajectory.append_sampled(prompt.node, completion, trained=trained), text, opened)
        return self._last
