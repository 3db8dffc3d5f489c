"""The replay engine: returns the completions of a stored run, token for token.

Tools, sandbox, rewards, credit and trainer run for real. A replay shows whether an environment is deterministic, and
tests a trainer without a sampler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from agentrl.store.reader import RunReader
from agentrl.types.engine import Completion, ContextOverflow, Engine, Finish, Sampling
from agentrl.types.episode import MAIN, Episode, Turn, planned_id
from agentrl.types.errors import StoreError
from agentrl.types.task import Message, Task
from agentrl.types.trajectory import Trajectory


class RecordedReplies:
    """Replies in a stored episode, with their prompts. `--replay` and forks (docs/fork.md) repeat them.

    Attributes:
        turns: of one conversation, in order.
    """

    def __init__(self, episode: Episode, conversation: str = MAIN) -> None:
        self.episode = episode
        self.turns = [turn for turn in episode.turns if turn.context == conversation]
        self._trajectory = Trajectory(episode.nodes)

    def prompt(self, turn: Turn) -> list[int]:
        """Returns all tokens before a reply, without what its agent began it with."""
        return self._trajectory.before(turn.node)

    def begun(self, turn: Turn) -> list[int]:
        """Returns the tokens that the agent began a reply with; usually none."""
        return self._trajectory.begun(turn.node)

    def shared(self, turn: Turn, token_ids: Sequence[int]) -> int:
        """Returns the number of tokens in the common prefix of a reply's prompt and `token_ids`."""
        return self._trajectory.shared_prefix(self.episode.nodes[turn.node].parent, token_ids)

    def completion(self, turn: Turn) -> Completion:
        """Returns a reply as its engine gave it."""
        node, finish = self.episode.nodes[turn.node], cast("Finish", turn.finish)
        return Completion(
            token_ids=node.token_ids, logprobs=list(node.logprobs or []), finish=finish, versions=node.versions
        )


class ReplayEngine(Engine):
    """Replays the completions of the episodes of `run`, found by episode id."""

    name = "replay"
    weights = "own"
    sees = True
    takes_weights = False

    def __init__(self, run: RunReader) -> None:
        self.run = run
        # By planned id; of an episode that was repeated after a failure, the successful one.
        rows = sorted(run.rows(), key=lambda row: row.status in ("done", "truncated"))
        self._stored = {planned_id(row.id): row.id for row in rows}
        # Completions of a script or an API have no log-probabilities, and neither has their replay.
        self.trainable = not rows or run.get(rows[-1].id).trainable
        self._live: dict[str, tuple[RecordedReplies, int]] = {}  # By session, with the number of its next turn.
        self._top_p = run.info["recipe"].get("sampling", {}).get("top_p", 1.0)

    def require(self, ids: Iterable[str]) -> None:
        """Checks that the stored run has these episodes. Called before the first episode runs.

        Raises:
            StoreError: the stored run lacks one of these episodes.
        """
        planned = [*ids]
        if lacks := [id for id in planned if planned_id(id) not in self._stored]:
            has = f"{min(self._stored)!r}, ..." if self._stored else "none"
            raise StoreError(
                f"has {len(planned) - len(lacks)} of the {len(planned)} episodes to replay: it lacks {lacks[0]!r}, "
                f"and has {has}",
                place=str(self.run.path),
                remedy="replay with the recipe, command and settings of that run, which determine the episode ids: "
                "tasks, seed, --n and --group-size of a rollout, train.groups and train.group_size of a training",
            )

    def begin_session(self, session: str, task: Task, messages: list[Message], seed: int) -> None:
        """Looks up the episode. A repeated attempt gets the same completions.

        Raises:
            StoreError: the stored run lacks the episode.
        """
        self.begin_context(session, task, messages, seed, episode=session, name=MAIN)

    def begin_context(
        self, session: str, task: Task, messages: list[Message], seed: int, *, episode: str, name: str
    ) -> None:
        """Looks up a context of an episode.

        Raises:
            StoreError: the stored run lacks the episode.
        """
        id = planned_id(episode)
        self._live[session] = RecordedReplies(self.run.get(self._stored.get(id, id)), name), 0

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        """The next stored completion.

        Raises:
            ContextOverflow: the stored episode ended with a full context here.
            StoreError: the temperature or the prompt differs from the stored one (the environment answered
                differently), the stored run cut the distribution where this one does not, or the stored episode has no
                further turn.
        """
        recorded, turn = self._live[session]
        episode, turns = recorded.episode, recorded.turns
        if self._top_p < 1 == sampling.top_p:
            raise StoreError(
                f"was sampled with sampling.top_p {self._top_p:g}, and is replayed with 1: its log-probabilities would "
                "be recorded as those of the whole distribution",
                place=str(self.run.path),
                remedy=f"set sampling.top_p={self._top_p:g}, as it was recorded",
            )
        if sampling.temperature != episode.temperature:
            raise StoreError(
                f"episode {session} was sampled at temperature {episode.temperature:g}, and is replayed at "
                f"{sampling.temperature:g}: its log-probabilities would be those of another distribution",
                place=str(self.run.path),
                remedy=f"set sampling.temperature={episode.temperature:g}, as it was recorded",
            )
        if turn >= len(turns) and episode.stop == "tokens":
            raise ContextOverflow(f"episode {session} filled the context after {turn} turns")
        if turn >= len(turns):
            raise StoreError(
                f"episode {session} continues after its {turn} stored turns",
                place=str(self.run.path),
                remedy="the environment answered differently than in the stored run",
            )
        stored = [*recorded.prompt(turns[turn]), *recorded.begun(turns[turn])]
        if list(token_ids) != stored:
            at = recorded.shared(turns[turn], token_ids)
            raise StoreError(
                f"episode {session}, turn {turn}: the prompt differs from the stored one at token {at}",
                place=str(self.run.path),
                remedy="the environment or the recipe has changed since the stored run",
            )
        self._live[session] = recorded, turn + 1
        return recorded.completion(turns[turn])

    async def skip(self, token_ids: Sequence[int], session: str) -> None:
        """A turn that a fork took from its parent: the stored fork has it, too."""
        recorded, turn = self._live[session]
        self._live[session] = recorded, turn + 1

    async def update(self, weights: Any, version: int) -> None:
        """Does nothing: the completions are fixed."""

    def end_session(self, session: str) -> None:
        """Drops the position in the episode."""
        self._live.pop(session, None)
