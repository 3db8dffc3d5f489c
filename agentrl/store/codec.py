"""Records as JSON lines. Values that are not finite are refused: JSON has no NaN, and they would be read as None."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError
from agentrl.types.values import scrubbed


class StoredCredit(msgspec.Struct, frozen=True, kw_only=True):
    """The credit of an episode.

    Attributes:
        turn_advantages: one advantage per turn.
        parts: summands of the advantages, for display: name -> one number per turn.
        note: the origin, if this is not the credit that the run trained with.
    """

    episode_id: str
    estimator: str
    turn_advantages: list[float]
    parts: dict[str, list[float]] = {}
    iteration: int = 0
    note: str = ""


encode = msgspec.json.Encoder().encode
decode_episode = msgspec.json.Decoder(Episode).decode
decode_credit = msgspec.json.Decoder(StoredCredit).decode


def encode_episode(episode: Episode) -> tuple[bytes, Episode]:
    """The line of an episode, and the episode as read back from it.

    Raises:
        StoreError: the episode contains NaN, infinity, or a value that is not JSON.
    """
    try:
        _must_be_finite(episode)
        try:
            return encode(episode), episode
        except UnicodeEncodeError:  # lone surrogates: shown as "?"
            line = encode(scrubbed(msgspec.to_builtins(episode)))
            return line, decode_episode(line)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unstorable(episode, error) from None


def encode_tree(tree: Sequence[Episode]) -> tuple[bytes, list[Episode]]:
    """The record of an episode and its forks: a line of each, so that all are written or none. As `encode_episode`."""
    lines, episodes = zip(*map(encode_episode, tree), strict=True)
    return b"\n".join(lines), list(episodes)


def line_of(record: bytes, id: str) -> bytes:
    """The line of one episode of a record."""
    if b"\n" not in record:
        return record
    begins = b'{"id":' + encode(id)
    return next((line for line in record.split(b"\n") if line.startswith(begins)), b"")


def must_be_storable(episode: Episode) -> None:
    """Checks that an episode can be written and read back.

    Raises:
        StoreError: it cannot.
    """
    _must_be_finite(episode)
    # Without the tokens: they do not come from user code, and are nearly all of the cost.
    line, _ = encode_episode(msgspec.structs.replace(episode, nodes=[]))
    try:
        decode_episode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unstorable(episode, error) from None


def _unstorable(episode: Episode, error: Exception) -> StoreError:
    return StoreError(
        f"episode {episode.id!r} cannot be stored: {error}",
        remedy="task data, messages and call arguments must be JSON: numbers, strings, lists, objects",
    )


def encode_credit(credit: StoredCredit) -> bytes:
    """The line of a credit.

    Raises:
        StoreError: the credit contains NaN or infinity.
    """
    for name, values in {"advantages": credit.turn_advantages, **credit.parts}.items():
        if not math.isfinite(sum(values)):
            raise StoreError(f"credit of episode {credit.episode_id!r}: {name} are not finite: {values}")
    return encode(credit)


def _must_be_finite(episode: Episode) -> None:
    scores = [episode.reward, *episode.components.values()]
    scores += [value for turn in episode.turns for value in (*turn.rewards.values(), turn.reward)]
    if not math.isfinite(sum(value for value in scores if value is not None)):
        raise StoreError(f"episode {episode.id!r}: a reward is NaN or infinite", remedy="fix the reward function")
    for number, node in enumerate(episode.nodes):
        if node.logprobs and not math.isfinite(sum(node.logprobs)):
            raise StoreError(f"episode {episode.id!r}: node {number} has a log-probability that is NaN or infinite")
