"""Demonstrations for the warm start: recorded episodes as text, and as samples under the model's own tokenizer.

A script's episode is recorded in bytes (it runs before the model's tokenizer exists). Here alone text is tokenised
a second time: these tokens were never sampled by the policy, so there is nothing to be exact to.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from agentrl.chat.renderer import Renderer
from agentrl.types.episode import Episode
from agentrl.types.sample import TrainingSample


def demonstration_texts(episodes: Iterable[Episode]) -> list[str]:
    """What was said in them, message by message: what a tokenizer is trained on."""
    texts: list[str] = []
    for episode in episodes:
        texts += [str(message["content"]) for message in episode.prompt]
        for turn in episode.turns:
            texts.append(turn.text)
            texts += [str(message["content"]) for message in turn.observations]
    return texts


def demonstration_sample(episode: Episode, renderer: Renderer) -> TrainingSample:
    """The sample that trains the demonstrated turns with advantage 1."""
    ids = renderer.start(episode.prompt)
    mask = [False] * len(ids)
    spans = []
    for turn in episode.turns:
        said = renderer.demonstrate(turn.text)
        spans.append((turn.index, len(ids), len(ids) + len(said)))
        ids, mask = ids + said, mask + [True] * len(said)
        if turn.index < len(episode.turns) - 1:
            seen = renderer.extend(said, turn.observations)
            ids, mask = ids + seen, mask + [False] * len(seen)
    return TrainingSample(
        token_ids=np.array(ids, np.int64),
        loss_mask=np.array(mask, np.bool_),
        behaviour_logprob=np.zeros(len(ids), np.float32),
        advantage=np.array(mask, np.float32),
        episode_id=episode.id,
        group_id=episode.group_id,
        branch_id=0,
        turn_spans=spans,
    )
