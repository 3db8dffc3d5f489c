"""Training sample, the trainer's input. Flat, one per branch of an episode; prompt and completion are not separate."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from agentrl.types.episode import Episode, Node, VersionSpan, begun, leaves_of, path_to


@dataclass(frozen=True)
class TrainingSample:
    """One branch of one episode.

    Attributes:
        token_ids: int64 [n].
        loss_mask: bool [n]; true where the policy sampled the token AND this sample is the one that trains it
            (a node shared by several branches trains once).
        behaviour_logprob: float32 [n], reported by the engine when it sampled the token (`Node.logprobs`); 0 where
            the mask is false.
        advantage: float32 [n]; 0 where the mask is false.
        turn_spans: (turn index, start, end) of every trained turn.
        begun: number of tokens directly before the span of a turn that the agent began its reply with, by turn.
        span_ends: places after the last tokens of spans that a reward function marked in trained turns.
        reward: of the whole episode; for losses that read outcomes.
        temperature: the sampling temperature; the trainer's log-probabilities are taken under the same.
        images: hashes of the images that its tokens may name (`types/parts/placeholders.py`).
        clip_scale: float32 [n], factor of the loss's clip range; None: 1 for all tokens.
    """

    token_ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    behaviour_logprob: NDArray[np.float32]
    advantage: NDArray[np.float32]
    episode_id: str
    group_id: str
    branch_id: int
    temperature: float = 1.0
    turn_spans: list[tuple[int, int, int]] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)
    span_ends: list[int] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    reward: float = 0.0
    images: tuple[str, ...] = ()
    clip_scale: NDArray[np.float32] | None = None

    @property
    def prompt_size(self) -> int:
        """Number of tokens before the first reply that trains, whoever began it."""
        starts = [start - self.begun.get(turn, 0) for turn, start, _ in self.turn_spans]
        return min(starts, default=int(np.argmax(self.loss_mask)))


def mask_turns(sample: TrainingSample, turns: Collection[int]) -> TrainingSample:
    """Masks some turns of a sample, so that they do not train."""
    mask = sample.loss_mask.copy()
    for turn, start, end in sample.turn_spans:
        if turn in turns:
            mask[start:end] = False
    spans = [span for span in sample.turn_spans if span[0] not in turns]
    return replace(
        sample,
        loss_mask=mask,
        behaviour_logprob=np.where(mask, sample.behaviour_logprob, np.float32(0)),
        advantage=np.where(mask, sample.advantage, np.float32(0)),
        turn_spans=spans,
    )


def training_samples(
    episode: Episode, turn_advantages: Sequence[float], token_advantages: Sequence[float] | None = None
) -> list[TrainingSample]:
    """Returns the samples of an episode: one per branch that trains at least one token.

    Args:
        turn_advantages, token_advantages: as `with_advantages` takes them.

    The trained tokens of all samples together are exactly the tokens that the policy sampled in the episode.
    """
    return with_advantages(untrained_samples(episode), turn_advantages, token_advantages)


def with_advantages(
    samples: Sequence[TrainingSample],
    turn_advantages: Sequence[float],
    token_advantages: Sequence[float] | None = None,
    clip_scales: Sequence[float] | None = None,
) -> list[TrainingSample]:
    """Sets the advantages of all samples of an episode from those of its turns.

    Args:
        turn_advantages: one per turn of the episode, broadcast to the tokens that the turn sampled.
        token_advantages: one per sampled token, turn after turn, if credit differs within a turn.
        clip_scales: one factor of the clip range per turn of the episode, broadcast likewise.
    """
    lengths = {turn: end - start for sample in samples for turn, start, end in sample.turn_spans}
    turns = sorted(lengths)
    first = dict(zip(turns, np.cumsum([0, *(lengths[turn] for turn in turns)]).tolist(), strict=False))
    filled = []
    for sample in samples:
        advantage = np.zeros(len(sample.token_ids), np.float32)
        scale = None if clip_scales is None else np.ones(len(sample.token_ids), np.float32)
        for turn, start, end in sample.turn_spans:
            if scale is not None and clip_scales is not None:
                scale[start:end] = clip_scales[turn]
            if token_advantages is None:
                advantage[start:end] = turn_advantages[turn]
            else:
                advantage[start:end] = token_advantages[first[turn] : first[turn] + end - start]
        filled.append(replace(sample, advantage=advantage, clip_scale=scale))
    return filled


def untrained_samples(episode: Episode) -> list[TrainingSample]:
    """Returns the samples of an episode before credit: every advantage is 0. They train its sampled turns."""
    turns = {turn.node: turn.index for turn in episode.sampled_turns}
    found = samples_of(episode.nodes, turns, _plain_of(episode))
    lasts = {turn.index: [span.last for span in turn.spans if span.last >= 0] for turn in episode.sampled_turns}
    if not any(lasts.values()):
        return found
    return [
        replace(each, span_ends=[start + last + 1 for turn, start, _ in each.turn_spans for last in lasts[turn]])
        for each in found
    ]


def learned_samples(episode: Episode) -> list[TrainingSample]:
    """Returns the samples for imitation or comparison of an episode: all own turns train, with advantage 1.

    The turns of a fork that its parent sampled train like its own: the messages before the fork are part of the
    episode. A fork and its parent then train the same tokens up to the fork.
    """
    turns = {turn.node: turn.index for turn in episode.own_turns}
    nodes = [
        msgspec.structs.replace(node, kind="sampled", logprobs=[0.0] * len(node.token_ids)) if at in turns else node
        for at, node in enumerate(episode.nodes)
    ]
    found = samples_of(nodes, turns, _plain_of(episode))
    return [replace(each, temperature=1.0, advantage=each.loss_mask.astype(np.float32)) for each in found]


def _plain_of(episode: Episode) -> Callable[..., TrainingSample]:
    """Returns a function that makes a sample of an episode from its arrays."""
    return partial(
        TrainingSample,
        episode_id=episode.id,
        group_id=episode.group_id,
        temperature=episode.temperature,
        reward=episode.reward or 0.0,
        images=tuple(sorted({part["blob"] for part in episode.shown_images()})),
    )


def samples_of(
    nodes: Sequence[Node], turns: Mapping[int, int], sample: Callable[..., TrainingSample]
) -> list[TrainingSample]:
    """Returns a sample for each branch that trains a token, without credit.

    Args:
        turns: turn by sampled node; others do not train.
        sample: makes one from its arrays.
    """
    trained: set[int] = set()
    samples: list[TrainingSample] = []
    for branch_id, leaf in enumerate(leaves_of(nodes)):
        path = path_to(nodes, leaf)
        length = sum(len(nodes[node].token_ids) for node in path)
        ids = np.zeros(length, np.int64)
        mask = np.zeros(length, np.bool_)
        logprobs = np.zeros(length, np.float32)
        spans: list[tuple[int, int, int]] = []
        given: dict[int, int] = {}
        versions: list[VersionSpan] = []
        at = 0
        for index in path:
            node = nodes[index]
            end = at + len(node.token_ids)
            ids[at:end] = node.token_ids
            if node.kind == "sampled" and index in turns and index not in trained:
                trained.add(index)
                mask[at:end] = True
                logprobs[at:end] = node.logprobs
                spans.append((turns[index], at, end))
                if size := len(begun(nodes, index)):
                    given[turns[index]] = size
                versions += [VersionSpan(v.version, at + v.start, at + v.end) for v in node.versions]
            at = end
        if mask.any():
            samples.append(
                sample(
                    token_ids=ids,
                    loss_mask=mask,
                    behaviour_logprob=logprobs,
                    advantage=np.zeros(length, np.float32),
                    branch_id=branch_id,
                    turn_spans=spans,
                    begun=given,
                    versions=versions,
                )
            )
    return samples


def by_turn(samples: Sequence[TrainingSample], values: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Maps arrays as long as the samples to episode ids: the entries of the sampled tokens, turn after turn."""
    found: dict[str, dict[int, NDArray[Any]]] = {}
    for sample, column in zip(samples, values, strict=True):
        turns = found.setdefault(sample.episode_id, {})
        turns.update({turn: column[start:end] for turn, start, end in sample.turn_spans})
    return {id: np.concatenate([turns[turn] for turn in sorted(turns)]) for id, turns in found.items()}
