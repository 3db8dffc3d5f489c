"""A conversation to learn from, as text: from a script, a file or a recorded API.

This is the only place where recorded text is tokenised again: the policy did not sample these tokens, so there are no
exact tokens to keep. (A script's episode is recorded in bytes; it may run before the model's tokenizer exists.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agentrl.chat.renderer import Renderer
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample
from agentrl.types.task import Message


@dataclass(frozen=True)
class Said:
    """A reply and the messages after it. `trains`: whether the reply is trained."""

    text: str
    observations: Sequence[Message]
    trains: bool = True


@dataclass(frozen=True)
class Conversation:
    """The opening messages, then replies.

    Attributes:
        id, group_id: ids of the sample's episode and group.
        place: the origin, for error messages.
    """

    id: str
    group_id: str
    opening: Sequence[Message]
    turns: Sequence[Said]
    place: str = ""

    @classmethod
    def of(cls, episode: Episode) -> Conversation:
        """The conversation of an episode."""
        turns = [Said(turn.text, turn.observations) for turn in episode.turns]
        return cls(episode.id, episode.group_id, episode.prompt, turns, f"episode {episode.id}")

    def texts(self) -> Iterator[str]:
        """The text of each message, to train a tokenizer."""
        yield from (str(message["content"]) for message in self.opening)
        for turn in self.turns:
            yield turn.text
            yield from (str(message["content"]) for message in turn.observations)

    def sample(self, renderer: Renderer, reward: float = 0.0) -> TrainingSample:
        """The sample that trains the replies with advantage 1.

        Args:
            reward: the reward of the episode; for a preference loss, its label.
        """
        ids = renderer.start(self.opening)
        mask = [False] * len(ids)
        spans = []
        for index, turn in enumerate(self.turns):
            said = renderer.demonstrate(turn.text, ids)
            if turn.trains:
                spans.append((index, len(ids), len(ids) + len(said)))
            ids, mask = ids + said, mask + [turn.trains] * len(said)
            if index < len(self.turns) - 1:
                seen = renderer.extend(said, turn.observations)
                ids, mask = ids + seen, mask + [False] * len(seen)
        return TrainingSample(
            token_ids=np.array(ids, np.int64),
            loss_mask=np.array(mask, np.bool_),
            behaviour_logprob=np.zeros(len(ids), np.float32),
            advantage=np.array(mask, np.float32),
            episode_id=self.id,
            group_id=self.group_id,
            branch_id=0,
            turn_spans=spans,
            reward=reward,
        )
