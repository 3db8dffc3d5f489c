"""The scores of groups, by reward functions that take all members: a record a group, apart from the episodes.

Members are stored as they end, and their group is scored after the last one. A group that gets another member later is
scored again; the last record counts.
"""

from __future__ import annotations

import msgspec

from agentrl.store.codec import encode
from agentrl.store.rescored import Rescore
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError


class GroupScores(msgspec.Struct, frozen=True, kw_only=True):
    """The scores of a group.

    Attributes:
        scores: of the members at the time of scoring, in order.
    """

    group_id: str
    scores: list[Rescore]

    def of(self, episode: Episode) -> Episode:
        """Returns a member with its score."""
        return next((score.onto(episode) for score in self.scores if score.episode_id == episode.id), episode)


decode_group_scores = msgspec.json.Decoder(GroupScores).decode


def encode_group_scores(scores: GroupScores) -> bytes:
    """The line of the scores.

    Raises:
        StoreError: a number is not finite, or a text is not Unicode.
    """
    line = _encoded(scores)
    if decode_group_scores(line) != scores:  # JSON has no NaN: it is read as None
        raise StoreError(f"the scores of group {scores.group_id!r} cannot be stored", remedy="fix the reward function")
    return line


def _encoded(scores: GroupScores) -> bytes:
    try:
        return encode(scores)
    except (TypeError, ValueError) as error:
        raise StoreError(f"the scores of group {scores.group_id!r} cannot be stored: {error}") from None
