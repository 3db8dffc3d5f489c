"""Stored episodes to learn from: of an earlier stage or of another run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from agentrl.chat.renderer import Renderer
from agentrl.store.index import EpisodeRow
from agentrl.store.reader import RunReader
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.types.episode import Episode, begun
from agentrl.types.errors import TrainError
from agentrl.types.figures.sums import reaches
from agentrl.types.sample import TrainingSample, learned_samples

LEARNED = ("demo", "rollout", "train")
"""Splits that a stage may learn from; evaluations are excluded."""


@dataclass(frozen=True)
class Stored:
    """The scored episodes of a run, or of one of its stages.

    Attributes:
        rows: rows of the index, sorted by id.
    """

    run: RunReader
    rows: list[EpisodeRow]

    @classmethod
    def of(cls, run: RunReader, prefix: str = "") -> Stored:
        """Selects the episodes with this prefix of ids."""
        rows = [row for row in run.rows(order="id") if row.id.startswith(prefix) and row.split in LEARNED]
        return cls(run, [row for row in rows if row.status in ("done", "truncated") and _can_teach(row)])

    def episodes(self, rows: Iterable[EpisodeRow]) -> Iterator[Episode]:
        """The episodes of some of the rows."""
        return self.run.episodes([row.id for row in rows])

    def earning(self, min_reward: float | None) -> list[EpisodeRow]:
        """Returns the rows of episodes with at least this reward; None: all.

        Raises:
            TrainError: no episode reaches it.
        """
        chosen = [row for row in self.rows if min_reward is None or reaches(row.reward or 0.0, min_reward)]
        if not chosen:
            best = max((row.reward or 0.0 for row in self.rows), default=None)
            found = "it has no scored episode" if best is None else f"the best of {len(self.rows)} earned {best:g}"
            raise TrainError(f"nothing to learn from: {found}", place=str(self.run.path), remedy="lower min_reward")
        return chosen


def _can_teach(row: EpisodeRow) -> bool:
    return row.reward is not None and row.turns > 0


def samples_of(episode: Episode, renderer: Renderer, label: float = 0.0) -> list[TrainingSample]:
    """Returns samples for training all replies of the policy in an episode with advantage 1.

    If the episode was sampled with the renderer's tokenizer, its sampled tokens are used; else the text is tokenised.

    Args:
        label: the reward of the samples.
    """
    if not is_of(episode, renderer):
        return SupervisedConversation.of(episode).samples(renderer, label)
    return [replace(each, reward=label) for each in learned_samples(episode)]


def is_of(episode: Episode, renderer: Renderer) -> bool:
    """Returns True if an episode was sampled with the renderer's tokenizer: its tokens decode to the recorded text."""
    tokenizer, ends = renderer.tokenizer, set(renderer.stop_token_ids)
    known = all(token < tokenizer.vocab_size for node in episode.nodes for token in node.token_ids)
    if not episode.trainable or not known:
        return False
    for turn in episode.own_turns:
        own, given = episode.nodes[turn.node].token_ids, begun(episode.nodes, turn.node)
        said = own[:-1] if own and own[-1] in ends else own
        if tokenizer.decode([*given, *said]) != turn.text:
            return False
    return True
