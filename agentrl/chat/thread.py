"""Thread: the tokens of one conversation in a trajectory.

Sessions and demonstrations make their prompts here. A prompt extends the last reply by the new messages; if it cannot
(the context was rewritten, the tools changed, an image is no longer shown), it starts a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from agentrl.chat.last_images import LastImages
from agentrl.chat.renderer import Renderer
from agentrl.types.engine import Completion
from agentrl.types.task import Message
from agentrl.types.trajectory import ROOT, Trajectory


class Prompt(NamedTuple):
    """Next prompt.

    Attributes:
        node: its last node.
        tokens: all of it.
        branched_at: if it starts a branch: the number of tokens in common with the earlier ones.
        drift: cause of an unintended branch.
        hides: whether it branches because an image is no longer shown.
    """

    node: int
    tokens: list[int]
    branched_at: int | None
    drift: Literal["template", "retokenisation"] | None = None
    hides: bool = False


class Thread:
    """One conversation: its messages, and the nodes of its prompts and replies.

    Args:
        images: rule for the images in prompts; None: all.

    Attributes:
        messages: all of them, replies included, as the next prompt shows them. A copy: changes to it do not affect
            prompts.
    """

    def __init__(self, trajectory: Trajectory, images: LastImages | None = None) -> None:
        self.trajectory, self._images = trajectory, images
        self.messages: list[Message] = []
        self._own: list[Message] = []  # The same, for prompts.
        self._last = ROOT  # The node of the last reply.
        self._replies: list[tuple[int, int]] = []  # Those that prompts extend: message and node, since the last start.
        self._read = 0  # Number of messages that some prompt holds.
        self._hides = False  # Whether one of these shows fewer images than before.
        self._opened: dict[str, str] = {}  # The mark of a thought that the prompt of a reply opened, by the reply.

    @property
    def restarted(self) -> bool:
        """True if the next prompt is rendered whole although replies exist."""
        return self._base == ROOT and self._last != ROOT

    def restart(self, messages: Sequence[Message] | None = None, of: Sequence[Message] = ()) -> None:
        """Renders the next prompt whole: with `messages` in place of the earlier ones, or the same under other tools.

        A message that existed before stays the same object in `messages`: information about it (a thought that its
        prompt opened, the calls that an API gave with it) belongs to the message, at any position.

        Args:
            of: the originals of which `messages` are copies, one for one.
        """
        if messages is not None:
            kept, self._own = _kept(messages, of, self.messages), [*map(dict, messages)]
            stay = [{} if k is None else self.messages[k] for k in kept]
            for message, new in zip(stay, self._own, strict=True):
                message.clear()
                message.update(new)
            self.messages[:] = stay
        self._replies, self._read, self._hides = [], 0, False
        self._hide()

    def add(self, messages: Sequence[Message]) -> None:
        """Adds messages after the last reply. They are rendered with the next prompt, and recorded only then."""
        self.messages.extend(map(dict, messages))
        self._own.extend(map(dict, messages))
        self._hide()

    def length(self, renderer: Renderer) -> int:
        """Returns the number of tokens of the next prompt, without recording it."""
        if self._renders(renderer):
            return len(renderer.start(self._shown(renderer)))
        if self._hides:
            return len(self._retold(renderer))
        base = 0 if self._base == ROOT else len(self.trajectory.tokens(self._base))
        return base + len(self._new(renderer))

    def prompt(self, renderer: Renderer) -> Prompt:
        """Returns the prompt of the next reply."""
        if self._renders(renderer):
            return self._rendered(renderer)
        if self._hides:
            return self._shortened(renderer)
        base, new = self._base, self._new(renderer)
        if base == ROOT:
            shared = None if self._last == ROOT else self.trajectory.shared_prefix(self._last, new)
            return Prompt(self.trajectory.append_whole(self._last, new), new, shared)
        at = self.trajectory.append_rendered(base, new) if new else base
        return Prompt(at, self.trajectory.tokens(at), None)

    def begin(self, prompt: Prompt, token_ids: Sequence[int]) -> Prompt:
        """Returns a prompt with the tokens that its reply begins with."""
        node = self.trajectory.append_begun(prompt.node, token_ids)
        return prompt._replace(node=node, tokens=[*prompt.tokens, *token_ids])

    @property
    def _base(self) -> int:
        """Node that the next prompt extends."""
        return self._replies[-1][1] if self._replies else ROOT

    def _hide(self) -> None:
        """Replaces images that are no longer shown by lines."""
        if self._images is not None:
            hidden = self._images.hide(self._own)
            for at, message in hidden.items():
                self.messages[at].update(message)
                self._own[at] = message
            self._hides |= min(hidden, default=self._read) < self._read

    def _renders(self, renderer: Renderer) -> bool:
        """Returns True if the template renders existing replies."""
        return renderer.history == "as_template" and self._base != ROOT

    def _rendered(self, renderer: Renderer) -> Prompt:
        """Renders the whole conversation by the template. It continues the tokens so far if they are its prefix."""
        before, tokens = self.trajectory.tokens(self._last), renderer.start(self._shown(renderer))
        shared = self.trajectory.shared_prefix(self._last, tokens)
        node = self.trajectory.append_whole(self._last, tokens)
        if shared == len(before):
            return Prompt(node, tokens, None)
        decode = renderer.tokenizer.decode
        same = decode(tokens).startswith(decode(before))
        return Prompt(node, tokens, shared, "retokenisation" if same else "template")

    def _shortened(self, renderer: Renderer) -> Prompt:
        """Returns a prompt with fewer images than the one before."""
        tokens = self._retold(renderer)
        shared = self.trajectory.shared_prefix(self._last, tokens)
        return Prompt(self.trajectory.append_whole(self._last, tokens), tokens, shared, hides=True)

    def _retold(self, renderer: Renderer) -> list[int]:
        """Renders the whole conversation with its current messages. The replies retain their sampled tokens."""
        at = self._replies[0][0]
        tokens = [*renderer.start(self._shown(renderer)[:at])]
        for (at, node), (end, _) in zip(self._replies, [*self._replies[1:], (len(self._own), ROOT)], strict=True):
            tokens += self.trajectory.begun(node) + self.trajectory.nodes[node].token_ids
            if after := self._own[at + 1 : end]:
                tokens += renderer.extend(self.trajectory.nodes[node].token_ids, after)
        return tokens

    def _shown(self, renderer: Renderer) -> list[Message]:
        """Returns the messages with the thoughts that prompts opened, at any position after a rewrite."""
        if not self._opened:
            return self._own
        last, (opening, closing) = next(reversed(self._opened.values())), renderer.parser.thought

        def shown(message: Message) -> Message:
            text = message["content"]
            if message["role"] != "assistant" or not isinstance(text, str):
                return message
            before, closed, _ = text.partition(closing)
            # A reply changed by a rewrite may close a thought that it did not open.
            opened = self._opened.get(text, last if closed and opening not in before else "")
            return {**message, "content": opened + text} if opened else message

        return [shown(message) for message in self._own]

    def _new(self, renderer: Renderer) -> list[int]:
        """Returns the tokens that the next prompt adds to the base."""
        if (base := self._base) == ROOT:
            return renderer.start(self._shown(renderer))
        sampled, unread = self.trajectory.nodes[base].token_ids, self._own[self._read :]
        return renderer.extend(sampled, unread) if unread else []

    def adopt(self, reply: int, text: str, opened: str = "") -> None:
        """Continues from a reply in the trajectory, whatever prompt it answered.

        Args:
            opened: the mark of a thought that its prompt left open, as the prompt has it.
        """
        if opened:
            self._opened[text] = opened
        self._last, self._hides = reply, False
        self._replies.append((len(self._own), reply))
        self.messages.append({"role": "assistant", "content": text})
        self._own.append({"role": "assistant", "content": text})
        self._read = len(self._own)

    def reply(
        self, prompt: Prompt, completion: Completion, text: str, *, opened: str = "", trained: bool = True
    ) -> int:
        """Records a reply to the last prompt; returns its node. `opened`: as `adopt`."""
        self.adopt(self.trajectory.append_sampled(prompt.node, completion, trained=trained), text, opened)
        return self._last


def _kept(new: Sequence[Message], of: Sequence[Message], before: Sequence[Message]) -> list[int | None]:
    """Returns for each new message the index of the earlier one that it is, None for a new one.

    It is the original of a copy; else an equal message, preferably the one before that which follows it.
    """
    places = {id(message): k for k, message in enumerate(before)}
    found: list[int | None] = [None] * len(new)
    left = dict.fromkeys(range(len(before)))
    for at, message in enumerate(of):
        if (k := places.get(id(message))) in left:
            found[at] = k
            del left[k]
    follows = len(before)
    for at in reversed(range(len(new))):
        if found[at] is None:
            same = (k for k in (follows - 1, *reversed(left)) if k in left and before[k] == new[at])
            found[at] = next(same, None)
        if (k := found[at]) is not None:
            left.pop(k, None)
            follows = k
    return found
