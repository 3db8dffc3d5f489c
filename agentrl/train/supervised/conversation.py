"""A conversation to learn from, as text: from a script, a file or a recorded API.

This is the only place where recorded text is tokenised again: the policy did not sample these tokens, so there are no
exact tokens to keep. (A script's episode is recorded in bytes; it may run before the model's tokenizer exists.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from agentrl.chat.renderer import Renderer
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample
from agentrl.types.task import Message


@dataclass(frozen=True)
class Said:
    """A reply and the messages after it. `trains`: whether the reply is trained.

    Attributes:
        tools: definitions of the tools it could call, if they had changed.
    """

    text: str
    observations: Sequence[Message]
    trains: bool = True
    tools: Sequence[dict[str, Any]] | None = None


@dataclass(frozen=True)
class Conversation:
    """The opening messages, then replies.

    Attributes:
        id, group_id: ids of the sample's episode and group.
        place: the origin, for error messages.
        tools: definitions of the first reply's tools; None: the renderer's.
        before: number of replies before the opening.
    """

    id: str
    group_id: str
    opening: Sequence[Message]
    turns: Sequence[Said]
    place: str = ""
    tools: Sequence[dict[str, Any]] | None = None
    before: int = 0

    @classmethod
    def of(cls, episode: Episode) -> Conversation:
        """The conversation of an episode."""
        turns = [Said(turn.text, turn.observations, tools=turn.tools) for turn in episode.turns]
        return cls(episode.id, episode.group_id, episode.prompt, turns, f"episode {episode.id}", episode.tools)

    def texts(self) -> Iterator[str]:
        """The text of each message, to train a tokenizer."""
        yield from (str(message["content"]) for message in self.opening)
        for turn in self.turns:
            yield turn.text
            yield from (str(message["content"]) for message in turn.observations)

    def samples(self, renderer: Renderer, reward: float = 0.0) -> list[TrainingSample]:
        """The samples that train the replies: one, and another from every reply on before which the tools changed."""
        return [piece.sample(renderer, reward) for piece in self._pieces()]

    def _pieces(self) -> Iterator[Conversation]:
        borders = [k for k, turn in enumerate(self.turns) if turn.tools is not None and k > 0]
        for begin, end in pairwise([0, *borders, len(self.turns)]):
            earlier = [
                message
                for turn in self.turns[:begin]
                for message in ({"role": "assistant", "content": turn.text}, *turn.observations)
            ]
            tools = self.turns[begin].tools if begin else self.tools
            opening, turns = [*self.opening, *earlier], self.turns[begin:end]
            yield replace(self, opening=opening, turns=turns, tools=tools, before=begin)

    def sample(self, renderer: Renderer, reward: float = 0.0) -> TrainingSample:
        """The sample that trains the replies with advantage 1, all under the tools of the first.

        Args:
            reward: the reward of the episode; for a preference loss, its label.
        """
        renderer = renderer if self.tools is None else renderer.for_tools(list(self.tools))
        ids = renderer.start(self.opening)
        mask = [False] * len(ids)
        spans = []
        for index, turn in enumerate(self.turns):
            said = renderer.demonstrate(turn.text, ids)
            if turn.trains:
                spans.append((self.before + index, len(ids), len(ids) + len(said)))
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
            branch_id=self.before,
            turn_spans=spans,
            reward=reward,
        )
