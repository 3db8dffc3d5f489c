"""Records as JSON lines. JSON has no NaN, so nothing that is not finite is let in: it would come back as None."""

from __future__ import annotations

import json
import math

import msgspec

from agentrl.episode.record import Episode
from agentrl.errors import StoreError


class Credit(msgspec.Struct, frozen=True, kw_only=True):
    """Why the turns of an episode were pushed up or down.

    Attributes:
        turn_advantages: one per turn.
        parts: what the advantages are made of, for people: name -> one number per turn.
        note: if it is not what the run trained with: where it comes from.
    """

    episode_id: str
    estimator: str
    turn_advantages: list[float]
    parts: dict[str, list[float]] = {}
    iteration: int = 0
    note: str = ""


encode = msgspec.json.Encoder().encode
decode_episode = msgspec.json.Decoder(Episode).decode
decode_credit = msgspec.json.Decoder(Credit).decode


def encode_episode(episode: Episode) -> tuple[bytes, Episode]:
    """The line of an episode, and the episode as it will be read.

    Raises:
        StoreError: it holds NaN, infinity, or something that is not JSON.
    """
    _must_be_finite(episode)
    try:
        return encode(episode), episode
    except UnicodeEncodeError:  # lone surrogates, from bytes that some tool decoded: shown as "?"
        line = json.dumps(msgspec.to_builtins(episode), ensure_ascii=False).encode("utf-8", "replace")
        return line, decode_episode(line)
    except TypeError as error:
        raise StoreError(
            f"episode {episode.id!r} cannot be stored: {error}",
            remedy="task data, messages and call arguments must be JSON: numbers, strings, lists, objects",
        ) from None


def encode_credit(credit: Credit) -> bytes:
    """The line of a credit.

    Raises:
        StoreError: it holds NaN or infinity.
    """
    for name, values in {"advantages": credit.turn_advantages, **credit.parts}.items():
        if not math.isfinite(sum(values)):
            raise StoreError(f"credit of episode {credit.episode_id!r}: {name} are not finite: {values}")
    return encode(credit)


def _must_be_finite(episode: Episode) -> None:
    scores = [episode.reward, *episode.components.values()]
    scores += [value for turn in episode.turns for value in (*turn.rewards.values(), turn.reward)]
    if not math.isfinite(sum(value for value in scores if value is not None)):
        raise StoreError(f"episode {episode.id!r}: a reward is NaN or infinite", remedy="mend the reward function")
    for number, node in enumerate(episode.nodes):
        if node.logprobs and not math.isfinite(sum(node.logprobs)):
            raise StoreError(f"episode {episode.id!r}: node {number} has a log-probability that is NaN or infinite")
