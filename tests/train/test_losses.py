"""The policy losses against numbers from verl (tests/golden/losses.json), values and gradients."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.errors import TrainError
from agentrl.train.losses import TokenBatch, loss_named, token_weights
from agentrl.train.row import Row
from agentrl.train.settings import TrainSettings

from .make import make_rows, turn_rows

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def golden_rows() -> tuple[list[Row], np.ndarray, np.ndarray]:
    """A row for each trajectory (action tokens only), and all new and old log-probabilities in the same order."""
    advantages, rows, new, old = golden("grpo")["expected_advantage_per_trajectory"], [], [], []
    for group in golden("inputs_common")["groups"]:
        for trajectory in group["trajectories"]:
            before = [x for turn in trajectory["turns"] for x in turn["old_logprobs"]]
            new += [x for turn in trajectory["turns"] for x in turn["logprobs"]]
            old += before
            n, id = len(before), trajectory["traj_id"]
            ones = np.ones(n, np.float32)
            rows.append(
                Row(
                    np.arange(n),
                    ones > 0,
                    np.array(before, np.float32),
                    ones * advantages[id],
                    id,
                    group["group_id"],
                    0,
                )
            )
    return rows, np.array(new, np.float32), np.array(old, np.float32)


def tokens(new, old, advantages, row=None) -> TokenBatch:
    new = torch.tensor(new, dtype=torch.float32, requires_grad=True)
    old, advantages = (torch.tensor(x, dtype=torch.float32) for x in (old, advantages))
    row = torch.zeros(len(new), dtype=torch.long) if row is None else torch.tensor(row)
    return TokenBatch(new, old, old, advantages, row)


CASES = {
    "ppo_clip eps=0.2 agg=token-mean": {},
    "ppo_clip eps=0.2 agg=seq-mean-token-mean": {"aggregation": "seq_mean_token_mean"},
    "ppo_clip eps=0.2 agg=seq-mean-token-sum-norm": {"aggregation": "seq_mean_token_sum_norm", "token_norm": 17},
    "dapo clip_low=0.2 clip_high=0.28 agg=token-mean": {"clip_high": 0.28},
}


@pytest.mark.parametrize("case", CASES)
def test_ppo_clip_matches_the_golden_values(case):
    expected, settings = golden("losses")["expected"][case], TrainSettings(**CASES[case])
    rows, new, old = golden_rows()
    batch = tokens(new, old, np.concatenate([row.advantages for row in rows]))
    per_token, clipped = loss_named("ppo_clip")(batch, settings)
    weights = np.concatenate(token_weights(rows, settings.aggregation, settings.token_norm))
    total = (per_token * torch.from_numpy(weights)).sum()
    total.backward()
    assert total.item() == pytest.approx(expected["loss"], abs=1e-6)
    wanted = [x for row in rows for turn in expected["grad_wrt_logprob"][row.episode_id] for x in turn]
    assert np.abs(batch.logprob.grad.numpy() - wanted).max() < 1e-6
    assert clipped.float().mean().item() == pytest.approx(expected["metrics"]["actor/pg_clipfrac"], abs=1e-6)


def test_dual_clip_bounds_the_loss_of_bad_tokens():
    batch = tokens([2.0, 0.5, 2.0, -2.0], [0.0] * 4, [-1.0, -1.0, 1.0, -1.0])
    plain, _ = loss_named("ppo_clip")(batch, TrainSettings())
    bounded, clipped = loss_named("ppo_clip")(batch, TrainSettings(dual_clip=3))
    assert plain.tolist() == pytest.approx([np.exp(2), np.exp(0.5), -1.2, 0.8])
    assert bounded.tolist() == pytest.approx([3.0, np.exp(0.5), -1.2, 0.8])
    assert clipped.tolist() == [True, False, True, True]
    bounded.sum().backward()
    assert batch.logprob.grad.tolist() == pytest.approx([0, np.exp(0.5), 0, 0])


def test_a_broken_token_cannot_overflow():
    batch = tokens([0.0], [-1000.0], [-1.0])
    assert torch.isfinite(loss_named("ppo_clip")(batch, TrainSettings())[0]).all()


def test_cross_entropy():
    batch = tokens([-1.0, -2.0], [0.0, 0.0], [1.0, 0.5])
    per_token, clipped = loss_named("cross_entropy")(batch, TrainSettings())
    assert per_token.tolist() == [1.0, 1.0]
    assert not clipped.any()


def test_an_unknown_loss_names_the_nearest():
    with pytest.raises(TrainError, match=r"no loss 'ppo_clop'(.|\n)*did you mean 'ppo_clip'"):
        loss_named("ppo_clop")


@pytest.mark.parametrize(
    ("aggregation", "norm"), [("token_mean", None), ("seq_mean_token_mean", None), ("seq_mean_token_sum_norm", 40.0)]
)
def test_weights_belong_to_episodes_not_to_rows(aggregation, norm):
    """One row a branch or one a turn: every sampled token weighs the same."""
    rows = make_rows(groups=2, size=4)
    whole, split = token_weights(rows, aggregation, norm), token_weights(turn_rows(rows), aggregation, norm)
    flat = [np.concatenate([w[w > 0] for w in weights]) for weights in (whole, split)]
    assert flat[0].tolist() == flat[1].tolist()
    if norm is None:
        assert sum(w.sum() for w in whole) == pytest.approx(1)


def test_a_sequence_without_trained_tokens_does_not_count():
    rows = make_rows(groups=1, size=2)[-2:]
    silent = dataclasses.replace(rows[0], episode_id="silent", loss_mask=np.zeros_like(rows[0].loss_mask))
    weights = token_weights([rows[1], silent], "seq_mean_token_mean")
    assert weights[0].sum() == pytest.approx(1)
    assert weights[1].sum() == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"aggregation": "seq_mean_token_sum_norm"},
        {"token_norm": 5},
        {"dual_clip": 0.5},
        {"learning_rate": 1},
        {"lr": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad)).split("_")[0]):
        TrainSettings(**bad)


def test_settings_rows_and_packing_do_without_torch():
    """A recipe is checked, and rows are made, where torch is not installed."""
    code = (
        "import agentrl.train.settings, agentrl.train.row, agentrl.train.packing, sys; sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])
