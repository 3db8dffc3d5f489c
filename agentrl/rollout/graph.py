"""Builds the token graph of an episode while it runs.

A node owns the tokens that one step added; a branch is a path from a root to a leaf. The next prompt is always
the tip's path plus newly rendered tokens, so sampled tokens are never tokenised again.
"""

from __future__ import annotations

from typing import Literal

from agentrl.types.engine import Completion
from agentrl.types.episode import Drift, Node


class TokenGraph:
    """Nodes so far, and the tip that the next step extends.

    Attributes:
        nodes: append-only.
        tip: index of the node that the next step extends; -1 before the first.
        tokens: all tokens from the root to the tip: the next prompt.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tip = -1
        self.tokens: list[int] = []
        self.drift: list[Drift] = []

    def append_rendered(self, token_ids: list[int]) -> None:
        """Adds the tokens of messages (prompt at a root, observation elsewhere)."""
        kind = "prompt" if self.tip < 0 else "observation"
        self._append(Node(parent=self.tip, kind=kind, token_ids=token_ids))  # type: ignore[arg-type]

    def append_sampled(self, completion: Completion) -> int:
        """Adds what the engine sampled; the index of the new node."""
        self._append(
            Node(
                parent=self.tip,
                kind="sampled",
                token_ids=completion.token_ids,
                logprobs=completion.logprobs,
                versions=completion.versions,
            )
        )
        return self.tip

    def restart(self, token_ids: list[int], turn: int, kind: Literal["context_edit", "tools"] = "context_edit") -> None:
        """Starts a new branch because the context was edited, or the tools in it changed; counts it as drift."""
        shared = 0
        for old, new in zip(self.tokens, token_ids, strict=False):
            if old != new:
                break
            shared += 1
        self.drift.append(Drift(turn=turn, kind=kind, at_token=shared))
        self.tip, self.tokens = -1, []
        self.append_rendered(token_ids)

    def _append(self, node: Node) -> None:
        self.nodes.append(node)
        self.tip = len(self.nodes) - 1
        self.tokens.extend(node.token_ids)
