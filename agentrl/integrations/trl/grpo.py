"""Our episodes and credit in TRL's GRPOTrainer: token-level advantages, recorded masks and log-probabilities.

Unsupported by TRL 1.16: several rows per episode, groups of unequal size. Turn-level advantages need a token-level
loss: with `importance_sampling_level="sequence"` only their sum over the episode has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from agentrl.types.errors import TrainError, needs
from agentrl.types.sample import TrainingSample

with needs("trl"):
    import datasets
    from trl import GRPOTrainer

Rollouts = Callable[[list[str]], Sequence[TrainingSample]]
"""Maps prompts (each repeated by the group size) to one row each, with advantages."""


class EpisodeGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer on rows of episodes; takes its arguments except `rollout_func` and `reward_funcs`.

    The probability ratio uses the engine's log-probabilities recorded in the rows.

    Args:
        rollouts: plays or looks up an episode for each prompt of a batch.
    """

    def __init__(self, *args: Any, rollouts: Rollouts, **kwargs: Any) -> None:
        self._rollouts = rollouts
        super().__init__(*args, rollout_func=self._play, reward_funcs=episode_reward, **kwargs)

    def _play(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        rows = list(self._rollouts(prompts))
        if len(rows) != len(prompts):
            raise TrainError(f"{len(prompts)} prompts came to {len(rows)} rows", remedy=_ONE_ROW)
        starts = [int(np.flatnonzero(row.loss_mask)[0]) for row in rows]
        columns: dict[str, list[np.ndarray[Any, Any]]] = {
            "prompt_ids": [row.token_ids[:at] for row, at in zip(rows, starts, strict=True)],
            "completion_ids": [row.token_ids[at:] for row, at in zip(rows, starts, strict=True)],
            "logprobs": [row.behaviour_logprob[at:] for row, at in zip(rows, starts, strict=True)],
            "env_mask": [row.loss_mask[at:].astype(int) for row, at in zip(rows, starts, strict=True)],
            "token_advantages": [row.advantage[at:] for row, at in zip(rows, starts, strict=True)],
        }
        lists = {name: [values.tolist() for values in column] for name, column in columns.items()}
        return {**lists, "episode_reward": [row.reward for row in rows]}

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        out: dict[str, Any] = super()._generate_and_score_completions(inputs)
        advantages = torch.zeros_like(out["completion_ids"], dtype=torch.float32)
        for line, each in zip(advantages, inputs, strict=True):
            line[: len(each["token_advantages"])] = torch.tensor(each["token_advantages"])
        out["advantages"] = advantages
        # TRL stores the log-probabilities of engines other than vLLM but does not use them.
        out["old_per_token_logps"] = out["sampling_per_token_logps"]
        return out


def episode_reward(completions: list[Any], episode_reward: list[float], **_: Any) -> list[float]:
    """Returns the reward for TRL's logs; advantages are computed elsewhere."""
    return episode_reward


def stored_rollouts(rows: Sequence[TrainingSample]) -> tuple[datasets.Dataset, Rollouts]:
    """Makes a data set with one line per group, and rollouts that return its members in order.

    Raises:
        TrainError: an episode has several rows.
    """
    groups: dict[str, list[TrainingSample]] = {}
    for row in rows:
        groups.setdefault(row.group_id, []).append(row)
    if len({row.episode_id for row in rows}) != len(rows):
        raise TrainError("an episode has several rows (branches)", remedy=_ONE_ROW)
    given = dict.fromkeys(groups, 0)

    def rollouts(prompts: list[str]) -> list[TrainingSample]:
        out = []
        for group in prompts:
            out.append(groups[group][given[group] % len(groups[group])])
            given[group] += 1
        return out

    return datasets.Dataset.from_dict({"prompt": list(groups)}), rollouts


_ONE_ROW = "GRPOTrainer takes one row an episode: train branching episodes with agentrl's own trainer, or async_grpo"
