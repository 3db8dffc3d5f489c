"""Token graph of an episode: the only place that builds it.

A node owns the tokens that one step added; a branch is a path from a root to a leaf. A prompt is a node's path, so
sampled tokens are never tokenised again. Sessions, the proxy and demonstrations record into a `Trajectory`; information
gain reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec

from agentrl.types.engine import Completion
from agentrl.types.episode import Node, begun, path_to, prompt_of

ROOT = -1
"""Parent of every root."""


class _Objects(dict[int, int]):
    """One object for each token of the vocabulary."""

    def __missing__(self, token: int) -> int:
        return self.setdefault(token, token) if token >= 0 else token  # image ids are not cached: too many


_object = _Objects().__getitem__


def _shared(token_ids: Iterable[int]) -> list[int]:
    """Returns the tokens as integer objects shared by all episodes: those of a tokenizer or JSON take four times the
    memory.
    """
    return list(map(_object, token_ids))


class Trajectory:
    """Nodes of an episode so far.

    Attributes:
        nodes: append-only. A node's parent has a smaller index.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes = list(nodes)
        self._children: dict[int, list[int]] = {}
        for index, node in enumerate(self.nodes):
            self._children.setdefault(node.parent, []).append(index)

    def append_rendered(self, at: int, token_ids: Sequence[int]) -> int:
        """Returns the node with the tokens of messages after `at` (`ROOT`: a new prompt); created if missing."""
        return self._rendered(at, "prompt" if at == ROOT else "observation", token_ids)

    def append_begun(self, at: int, token_ids: Sequence[int]) -> int:
        """Returns the node with the tokens that the agent begins a reply with, after the prompt `at`."""
        return self._rendered(at, "begun", token_ids)

    def _rendered(self, at: int, kind: Literal["prompt", "observation", "begun"], token_ids: Sequence[int]) -> int:
        node = Node(parent=at, kind=kind, token_ids=_shared(token_ids))
        known = next((k for k in self._children.get(at, ()) if self.nodes[k] == node), None)
        return self._append(node) if known is None else known

    def append_whole(self, last: int, token_ids: Sequence[int]) -> int:
        """Returns the node where a prompt of exactly `token_ids` ends.

        It extends the last node of the path to `last` up to which the tokens are equal.
        """
        at, have = ROOT, 0
        for index in self.path(last):
            end = have + len(self.nodes[index].token_ids)
            if self.nodes[index].token_ids != token_ids[have:end]:
                break
            at, have = index, end
        return self.append_rendered(at, token_ids[have:]) if have < len(token_ids) else at

    def append_sampled(self, at: int, completion: Completion, *, trained: bool = True) -> int:
        """Adds a node with a completion sampled after `at`. `trained`: whether a trainable policy sampled it."""
        sampled = Node(
            parent=at,
            kind="sampled" if trained else "spoken",
            token_ids=_shared(completion.token_ids),
            logprobs=completion.logprobs,
            versions=completion.versions,
        )
        return self._append(sampled)

    def take(self, node: Node) -> int:
        """Adds a node of another trajectory, whose nodes before it are all here."""
        return self._append(node)

    def path(self, at: int) -> list[int]:
        """Returns the nodes from the root to `at`; none to `ROOT`."""
        return path_to(self.nodes, at)

    def tokens(self, at: int) -> list[int]:
        """Returns all tokens from the root to the end of `at`."""
        tokens: list[int] = []
        for index in self.path(at):
            tokens += self.nodes[index].token_ids  # whole nodes: a prompt is read at every turn, and may be long
        return tokens

    def before(self, at: int) -> list[int]:
        """Returns all tokens before a reply: its prompt, without what the agent began it with."""
        return self.tokens(prompt_of(self.nodes, at))

    def begun(self, at: int) -> list[int]:
        """Returns the tokens that the agent began a reply with; usually none."""
        return begun(self.nodes, at)

    def shared_prefix(self, at: int, token_ids: Sequence[int]) -> int:
        """Returns the number of tokens in the common prefix of the path to `at` and `token_ids`."""
        own = self.tokens(at)
        return next(
            (k for k, (a, b) in enumerate(zip(own, token_ids, strict=False)) if a != b), min(len(own), len(token_ids))
        )

    def branches(self, ends: Sequence[int]) -> list[list[int]]:
        """Groups the nodes `ends` by branch, in order: each once, with the last of them that continues it."""
        branches: list[list[int]] = []
        done: set[int] = set()
        for last in reversed(ends):
            if last not in done:
                on_path = set(self.path(last)) - done
                branches.append([end for end in ends if end in on_path])
                done |= on_path
        return branches

    def without(self, gone: Collection[int]) -> tuple[list[Node], dict[int, int]]:
        """Returns the nodes except `gone` (which have no children), and the new index of each."""
        kept = [index for index in range(len(self.nodes)) if index not in gone]
        moved = {ROOT: ROOT} | {index: k for k, index in enumerate(kept)}
        nodes = [msgspec.structs.replace(self.nodes[k], parent=moved[self.nodes[k].parent]) for k in kept]
        return nodes, moved

    def _append(self, node: Node) -> int:
        self.nodes.append(node)
        self._children.setdefault(node.parent, []).append(len(self.nodes) - 1)
        return len(self.nodes) - 1
