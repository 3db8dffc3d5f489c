"""The replay engine: says again, token for token, what a stored run said.

Tools, sandbox, rewards, credit and trainer run for real, so a replay shows whether an environment is deterministic,
and lets a trainer be tested without a sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.engines.base import Completion, Sampling
from agentrl.episode.record import Episode
from agentrl.errors import StoreError
from agentrl.store.run_dir import RunDir
from agentrl.task import Message, Task


class ReplayEngine:
    """Completions from the episodes of `run`, found by episode id."""

    name = "replay"
    max_context = 1_000_000_000
    checkpoint_names = False

    def __init__(self, run: RunDir) -> None:
        self.run = run
        # What a script or an API said had no probabilities, and has none the second time.
        text_only = run.info["recipe"].get("engine", {}).get("use") == "openai"
        self.trainable = run.info.get("agent") is None and not text_only
        self._live: dict[str, tuple[Episode, int]] = {}

    async def start(self) -> None:
        """Nothing to wait for."""

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Looks the episode up.

        Raises:
            StoreError: the stored run has no such episode.
        """
        self._live[session] = (self.run.get(session), 0)

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """The next stored reply.

        Raises:
            StoreError: the prompt is not the stored one (the environment answered differently), or the stored
                episode has no further turn.
        """
        episode, turn = self._live[session]
        if turn >= len(episode.turns):
            raise StoreError(
                f"episode {session} goes on after its {turn} stored turns",
                place=str(self.run.path),
                remedy="the environment did not answer as it did then",
            )
        index = episode.turns[turn].node
        node = episode.nodes[index]
        stored = [token for k in episode.path(index)[:-1] for token in episode.nodes[k].token_ids]
        if list(token_ids) != stored:
            at = next((k for k, (a, b) in enumerate(zip(token_ids, stored, strict=False)) if a != b), len(stored))
            raise StoreError(
                f"episode {session}, turn {turn}: the prompt differs from the stored one at token {at}",
                place=str(self.run.path),
                remedy="the environment or the recipe is not what it was then",
            )
        self._live[session] = (episode, turn + 1)
        finish: Any = episode.turns[turn].finish
        return Completion(
            token_ids=node.token_ids, logprobs=list(node.logprobs or []), finish=finish, versions=node.versions
        )

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        """A stored run has no probabilities but its own."""
        raise TypeError("the replay engine cannot score: use a model")

    async def update(self, weights: Any, version: int) -> None:
        """Does nothing: what was said is fixed, whatever the trainer learns from it."""

    def end_session(self, session: str) -> None:
        """Forgets where the episode stood."""
        self._live.pop(session, None)

    async def close(self) -> None:
        """Closes nothing: the run belongs to the caller."""
