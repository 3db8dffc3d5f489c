"""The policy losses against numbers from verl (tests/golden/losses.json), values and gradients; the others by hand."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from agentrl.config.train import ImportanceSettings, KlSettings, LossSettings, TrainSettings
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.loss import Loss
from agentrl.training.losses.objective import Objective, importance_weight, kl_estimate, kl_loss
from agentrl.training.losses.registry import LOSSES, load_loss
from agentrl.training.losses.weights import token_weights
from agentrl.training.model.columns import token_columns
from agentrl.types.episode import Episode, Node, SpanReward, Turn
from agentrl.types.errors import RecipeError, TrainError
from agentrl.types.sample import TrainingSample, training_samples
from agentrl.types.task import Task

from .make import make_rows, turn_rows

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> dict:
    return json.loads((GOLDEN / f"{name}.json").read_text())


def golden_rows() -> tuple[list[TrainingSample], dict[str, np.ndarray]]:
    """A row for each trajectory (action tokens only), and all log-probabilities by kind in the same order."""
    advantages, rows = golden("grpo")["expected_advantage_per_trajectory"], []
    found: dict[str, list[float]] = {"logprobs": [], "old_logprobs": [], "ref_logprobs": []}
    for group in golden("inputs_common")["groups"]:
        for trajectory in group["trajectories"]:
            for kind, values in found.items():
                values += [x for turn in trajectory["turns"] for x in turn[kind]]
            before = [x for turn in trajectory["turns"] for x in turn["old_logprobs"]]
            n, id, ones = len(before), trajectory["traj_id"], np.ones(len(before), np.float32)
            old = np.array(before, np.float32)
            rows.append(TrainingSample(np.arange(n), ones > 0, old, ones * advantages[id], id, group["group_id"], 0))
    return rows, {kind: np.array(values, np.float32) for kind, values in found.items()}


def batch_of(rows: list[TrainingSample], new, old, weights, ref=None) -> TokenBatch:
    columns = token_columns(rows, weights)
    flat = {name: torch.from_numpy(np.concatenate(parts)) for name, parts in columns.items()}
    ref = None if ref is None else torch.from_numpy(ref)
    new = torch.from_numpy(new).requires_grad_()
    return TokenBatch(logprob=new, old_logprob=torch.from_numpy(old), ref_logprob=ref, **flat)


def tokens(new, old, advantages, *, episode=None, group=None, reward=None, **more) -> TokenBatch:
    n = len(new)
    floats = {"old_logprob": old, "behaviour_logprob": more.pop("behaviour", old), "advantage": advantages}
    floats |= {"reward": reward or [0.0] * n, "weight": [1.0] * n, **more}
    index = {"episode": episode or [0] * n, "turn": episode or [0] * n, "group": group or [0] * n}
    return TokenBatch(
        logprob=torch.tensor(new, dtype=torch.float32, requires_grad=True),
        **{name: torch.tensor(values, dtype=torch.float32) for name, values in floats.items()},
        **{name: torch.tensor(values) for name, values in index.items()},
    )


def objective(use: str, **settings) -> Objective:
    return Objective.of(TrainSettings(loss={"use": use, **settings}))


CASES = {
    "ppo_clip eps=0.2 agg=token-mean": {},
    "ppo_clip eps=0.2 agg=seq-mean-token-sum": {"aggregation": "seq_mean_token_sum"},
    "ppo_clip eps=0.2 agg=seq-mean-token-mean": {"aggregation": "seq_mean_token_mean"},
    "ppo_clip eps=0.2 agg=seq-mean-token-sum-norm": {"aggregation": "seq_mean_token_sum_norm", "token_norm": 17},
    "dapo clip_low=0.2 clip_high=0.28 agg=token-mean": {"loss": "dapo"},
    "gspo clip_low=3e-4 clip_high=4e-4": {"loss": "gspo_token"},
    "gspo clip_low=0.2 clip_high=0.2": {"loss": {"use": "gspo_token", "clip_low": 0.2, "clip_high": 0.2}},
    "cispo clip_low=10 clip_high=0.2 agg=token-mean": {"loss": "cispo"},
    "gpg agg=token-mean": {"loss": "gpg"},
    "geo_mean clip=0.4": {"loss": "gmpo"},
}


def test_every_loss_of_the_golden_file_is_checked():
    assert CASES.keys() == golden("losses")["expected"].keys()


@pytest.mark.parametrize("case", CASES)
def test_losses_match_the_golden_values_and_gradients(case):
    expected, settings = golden("losses")["expected"][case], TrainSettings(**CASES[case])
    rows, logprobs = golden_rows()
    wanted = Objective.of(settings)
    weights = token_weights(rows, wanted.aggregation, settings.token_norm)
    batch = batch_of(rows, logprobs["logprobs"], logprobs["old_logprobs"], weights)
    per_token, clipped = wanted(batch)
    total = (per_token * batch.weight).sum()
    total.backward()
    assert total.item() == pytest.approx(expected["loss"], abs=1e-6)
    gradient = [x for row in rows for turn in expected["grad_wrt_logprob"][row.episode_id] for x in turn]
    assert np.abs(batch.logprob.grad.numpy() - gradient).max() < 1e-6
    if "actor/pg_clipfrac" in expected["metrics"]:
        assert clipped.float().mean().item() == pytest.approx(expected["metrics"]["actor/pg_clipfrac"], abs=1e-6)


def test_gspo_is_its_token_form_where_a_sequence_has_one_advantage():
    rows, logprobs = golden_rows()
    gradients = []
    for name in ("gspo", "gspo_token"):
        wanted = objective(name)
        batch = batch_of(rows, logprobs["logprobs"], logprobs["old_logprobs"], token_weights(rows, wanted.aggregation))
        (wanted(batch)[0] * batch.weight).sum().backward()
        gradients.append(batch.logprob.grad)
    assert torch.allclose(*gradients, atol=1e-8)


def test_gspo_reaches_the_whole_sequence_and_its_token_form_only_the_token():
    for name, expected in (("gspo", [-0.5, -0.5]), ("gspo_token", [-1.0, 0.0])):
        batch = tokens([0.0, 0.0], [0.0, 0.0], [1.0, 0.0])
        objective(name)(batch)[0].sum().backward()
        assert batch.logprob.grad.tolist() == pytest.approx(expected), name


def test_a_sequence_can_be_a_turn():
    rows = make_rows(groups=1, size=1, turns=2)
    weights = token_weights(rows, "token_mean")
    flat = {name: np.concatenate([c[row.loss_mask] for c, row in zip(parts, rows, strict=True)])
            for name, parts in token_columns(rows, weights).items()}  # fmt: skip
    new, old = (np.random.default_rng(k).normal(size=len(flat["turn"])).astype(np.float32) / 10 for k in (0, 1))
    batch = TokenBatch(logprob=torch.from_numpy(new), old_logprob=torch.from_numpy(old),
                       **{name: torch.from_numpy(x) for name, x in flat.items()})  # fmt: skip
    ours = objective("gspo", clip_low=0.9, clip_high=9, sequence="turn")(batch)[0].numpy()
    for turn in np.unique(flat["turn"]):
        here = flat["turn"] == turn
        assert ours[here] == pytest.approx(-np.exp((new - old)[here].mean()) * flat["advantage"][here], abs=1e-6)


def spanned(*lasts: int) -> Episode:
    """An episode of two replies of four tokens; the first has spans that end at these tokens."""
    nodes = [Node(parent=-1, kind="prompt", token_ids=[1, 2])]
    nodes += [Node(parent=k, kind="sampled", token_ids=[3, 4, 5, 6], logprobs=[-1.0] * 4) for k in range(2)]
    spans = [SpanReward("ranks", k, k + 1, 1.0, first=0, last=last) for k, last in enumerate(lasts)]
    turns = [Turn(index=k, node=k + 1, text="abc", finish="stop") for k in range(2)]
    turns[0] = msgspec.structs.replace(turns[0], spans=spans)
    return Episode(id="e", group_id="g", task=Task.of("t", "go"), status="done", nodes=nodes, turns=turns, reward=1.0)


@pytest.mark.parametrize(("lasts", "sequences"), [
    # Two spans, what follows them, and a turn without any; a span that fills its turn; spans of unknown tokens.
    ((0, 2), [0, 1, 1, 2, 3, 3, 3, 3]), ((3,), [0] * 4 + [1] * 4), ((-1,), [0] * 4 + [1] * 4),
])  # fmt: skip
def test_a_sequence_can_be_a_span(lasts, sequences):
    rows = training_samples(spanned(*lasts), [1.0, -1.0])
    new, old = (np.random.default_rng(k).normal(size=8).astype(np.float32) / 10 for k in (0, 1))
    columns = token_columns(rows, token_weights(rows, "token_mean"))
    flat = {name: torch.from_numpy(np.concatenate(parts)[2:]) for name, parts in columns.items()}
    batch = TokenBatch(logprob=torch.from_numpy(new), old_logprob=torch.from_numpy(old), **flat)
    ours = objective("gspo", clip_low=0.9, clip_high=9, sequence="span")(batch)[0].numpy()
    for sequence in set(sequences):
        here = np.array(sequences) == sequence
        assert ours[here] == pytest.approx(-np.exp((new - old)[here].mean()) * flat["advantage"][here], abs=1e-6)


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3"])
def test_kl_matches_the_golden_values_and_gradients(name):
    expected = golden("losses")["kl"][name]
    rows, logprobs = golden_rows()
    new = torch.from_numpy(logprobs["logprobs"]).requires_grad_()
    values = kl_estimate(new - torch.from_numpy(logprobs["ref_logprobs"]), name)
    values.mean().backward()
    for key, ours in (("per_token", values.detach()), ("grad_wrt_logprob_of_token_mean", new.grad)):
        wanted = [x for row in rows for turn in expected[key][row.episode_id] for x in turn]
        assert np.abs(ours.numpy() - wanted).max() < 1e-6
    assert values.mean().item() == pytest.approx(expected["token_mean"], abs=1e-6)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_a_straight_through_estimate_has_one_value_and_the_gradient_of_k2(name):
    batch = tokens([-1.0, -2.0], [-1.0, -2.0], [0, 0], ref_logprob=[-1.3, -1.2])
    value = kl_loss(batch, KlSettings(coef=1, estimator=name + "+"))
    assert value.tolist() == kl_estimate(batch.logprob - batch.ref_logprob, name).tolist()
    value.sum().backward()
    assert batch.logprob.grad.tolist() == pytest.approx([0.3, -0.8])  # d of each token


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_unbiased_kl_has_the_gradient_of_the_divergence(name):
    """Off policy too: the expectation over old samples of the gradient is that of KL(policy || reference)."""
    torch.manual_seed(0)
    logits, old, ref = torch.randn(5, requires_grad=True), torch.randn(5), torch.randn(5)
    policy, old, ref = logits.log_softmax(0), old.log_softmax(0), ref.log_softmax(0)
    exact = torch.autograd.grad((policy.exp() * (policy - ref)).sum(), logits, retain_graph=True)[0]
    zeros, index = torch.zeros(5), torch.zeros(5, dtype=torch.long)
    batch = TokenBatch(policy, old, old, zeros, zeros, zeros, index, index, index, ref)
    each = kl_loss(batch, KlSettings(coef=1, estimator=name, unbiased=True))
    estimate = torch.autograd.grad((old.exp() * each).sum(), logits)[0]
    assert torch.allclose(estimate, exact, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"estimator": "k1"}, "mean zero"),
        ({"estimator": "k3+", "place": "reward"}, "gradients"),
        ({"estimator": "k2", "unbiased": True}, "k1 or k3"),
        ({"coef": 0}, "greater than 0"),
    ],
)
def test_kl_settings_that_do_nothing_are_refused(settings, word):
    with pytest.raises(ValueError, match=word):
        KlSettings(**{"coef": 0.1, **settings})


# Episodes of two tokens and of one; log(old / behaviour) of the tokens: 0.1, 0.3 and -1.
GAPS = {"old": [0.1, 0.3, -1.0], "behaviour": [0.0, 0.0, 0.0], "episode": [0, 0, 1]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"high": 1.2}, [math.exp(0.1), 1.2, math.exp(-1)]),
        ({"level": "sequence", "high": 1.4}, [1.4, 1.4, math.exp(-1)]),
        ({"level": "geometric", "high": 1.4}, [math.exp(0.2), math.exp(0.2), math.exp(-1)]),
        ({"mode": "mask", "low": 0.5, "high": 1.2}, [math.exp(0.1), 0, 0]),
        ({"mode": "mask", "level": "geometric", "low": 0.5, "high": 1.3}, [math.exp(0.2), math.exp(0.2), 0]),
    ],
)
def test_importance_weights(settings, expected):
    batch = tokens([0.0] * 3, GAPS["old"], [1.0] * 3, behaviour=GAPS["behaviour"], episode=GAPS["episode"])
    assert importance_weight(batch, ImportanceSettings(**settings)).tolist() == pytest.approx(expected)


def test_importance_may_only_ever_weaken():
    """DART clamps the weight at 1."""
    batch = tokens([-1.0, -1.0], [-0.5, -1.5], [1.0, 1.0], behaviour=[-1.0, -1.0])
    assert importance_weight(batch, ImportanceSettings(high=1.0)).tolist() == pytest.approx([1.0, math.exp(-0.5)])


def test_importance_multiplies_the_policy_loss_and_not_the_kl():
    settings = TrainSettings(
        loss="reinforce", kl={"coef": 0.5, "estimator": "k2"}, importance={"mode": "mask", "high": 1.5, "low": 0.5}
    )
    batch = tokens([-1.0], [0.0], [2.0], behaviour=[1.0], ref_logprob=[-2.0])
    assert Objective.of(settings)(batch)[0].item() == pytest.approx(0.25)  # exp(-1) < 0.5: only 0.5 * 1 / 2


def test_dual_clip_bounds_the_loss_of_bad_tokens():
    batch = tokens([2.0, 0.5, 2.0, -2.0], [0.0] * 4, [-1.0, -1.0, 1.0, -1.0])
    plain, _ = objective("ppo_clip")(batch)
    bounded, clipped = objective("ppo_clip", dual_clip=3)(batch)
    assert plain.tolist() == pytest.approx([np.exp(2), np.exp(0.5), -1.2, 0.8])
    assert bounded.tolist() == pytest.approx([3.0, np.exp(0.5), -1.2, 0.8])
    assert clipped.tolist() == [True, False, True, True]
    bounded.sum().backward()
    assert batch.logprob.grad.tolist() == pytest.approx([0, np.exp(0.5), 0, 0])


def test_sapo_by_hand():
    """Ratios e^0 and e^0.5: gates sigmoid(0) 4 / 1 = 2, and sigmoid(1.05 (1.6487 - 1)) 4 / 1.05 = 2.5295."""
    batch = tokens([0.0, 0.5], [0.0, 0.0], [1.0, -1.0])
    per_token, clipped = objective("sapo")(batch)
    assert per_token.tolist() == pytest.approx([-2.0, 2.5295], abs=1e-4)
    assert not clipped.any()
    per_token.sum().backward()
    # d gate / d log-prob = 4 s (1 - s) w: 4 * 0.25 * 1 = 1, on policy the plain policy gradient.
    assert batch.logprob.grad[0].item() == pytest.approx(-1.0)


def test_dppo_masks_what_moves_away_and_lets_come_back():
    """Probabilities 0.9, 0.52, 0.1, 0.9 from 0.5: away beyond 0.15; within; away; back towards 0.5 with A < 0."""
    new, old = np.log([0.9, 0.52, 0.1, 0.9]).tolist(), np.log([0.5] * 4).tolist()
    advantages = [1.0, 1.0, -1.0, -1.0]
    for name in ("dppo_tv", "dppo_kl"):
        batch = tokens(new, old, advantages)
        per_token, masked = objective(name)(batch)
        assert masked.tolist() == [True, False, True, False], name
        per_token.sum().backward()
        assert batch.logprob.grad.tolist() == pytest.approx([0, -1.04, 0, 1.8]), name  # -A w where it counts


def test_a_lol_weighs_the_whole_episode_against_the_reference():
    # Two tokens of an episode, twice and thrice as likely as under the reference: 6, clipped to 1.9; the other: 1/2.
    new, ref = [-1.0, -1.0, -1.0], [-1 - math.log(2), -1 - math.log(3), -1 + math.log(2)]
    batch = tokens(new, [0.0] * 3, [0.5, 0.5, 2.0], episode=[0, 0, 1], ref_logprob=ref)
    loss, clipped = objective("a_lol")(batch)
    assert loss.tolist() == pytest.approx([1.9 * 0.5, 1.9 * 0.5, 0.5 * 2])
    assert clipped.tolist() == [True, True, False]
    loss.sum().backward()
    assert batch.logprob.grad.tolist() == pytest.approx([-1.9 * 0.5, -1.9 * 0.5, -0.5 * 2])
    by_token, _ = objective("a_lol", weight="token", clip=0.5)(batch)
    assert by_token.tolist() == pytest.approx([1.5 * 0.5, 1.5 * 0.5, 0.5 * 2])


def test_rec_drops_tokens_that_moved_too_far():
    # Ratios 1.5, 0.5, 1.5, 0.5, 1, 4 with l = -1. Beyond the bound in the direction of A: the first and the fourth.
    ratios, advantages = [1.5, 0.5, 1.5, 0.5, 1.0, 4.0], [1.0, 1.0, -1.0, -1.0, 2.0, -1.0]
    batch = tokens([-1.0] * 6, [-1 - math.log(ratio) for ratio in ratios], advantages)
    loss, clipped = objective("rec")(batch)
    assert loss.tolist() == pytest.approx([0, 1, -1, 0, 2, -1])
    assert clipped.tolist() == [True, False, False, True, False, False]
    assert objective("rec", clip="two_side")(batch)[1].tolist() == [True, True, True, True, False, True]
    # The ring lets back what is at 0.4 or less with A >= 0, or at 3 or more with A <= 0.
    assert objective("rec", clip="ring")(batch)[1].tolist() == [True, True, True, True, False, False]
    assert objective("rec", clip="none")(batch)[0].tolist() == pytest.approx(advantages)


def test_rec_weighs_tokens_and_adds_a_regulariser():
    batch = tokens([-1.0, -2.0], [-1 - math.log(2), -2.0], [-1.0, 2.0])
    assert objective("rec", weight="ratio")(batch)[0].tolist() == pytest.approx([-2, 4])
    assert objective("rec", weight="advantage", temperature=2.0)(batch)[0].tolist() == pytest.approx(
        [-math.exp(-0.5), 4 * math.e]
    )
    k2, _ = objective("rec", regulariser="k2", coef=0.5)(batch)
    assert k2.tolist() == pytest.approx([-1 + 0.5 * math.log(2) ** 2, 4])
    assert objective("rec", regulariser="forward_kl", coef=0.5)(batch)[0].tolist() == pytest.approx([-0.5, 5])


def test_rec_by_ratio_has_the_gradient_of_ppo():
    ratios, advantages = [1.5, 0.5, 1.5, 0.5, 1.1], [1.0, 1.0, -1.0, -1.0, 2.0]
    found = []
    for name, more in (("rec", {"weight": "ratio"}), ("ppo_clip", {})):
        batch = tokens([-1.0] * 5, [-1 - math.log(ratio) for ratio in ratios], advantages)
        objective(name, **more)(batch)[0].sum().backward()
        found.append(batch.logprob.grad.tolist())
    assert found[0] == pytest.approx(found[1])


def test_pacs_by_hand():
    """Two episodes of a group: psi = 0.4 + 0.2 and -0.1, so the centred scores are 0.7 and -0.7. BCE of label 1 at
    0.7 and of label 0 at -0.7 is log(1 + e^-0.7) = 0.4032 each."""
    batch = tokens([0.4, 0.2, -0.1], [0.0] * 3, [0.0] * 3, episode=[0, 0, 1], reward=[1.0, 1.0, 0.0])
    per_token, _ = objective("pacs")(batch)
    assert per_token.tolist() == pytest.approx([0.403186] * 3, abs=1e-5)
    weights = torch.tensor([0.25, 0.25, 0.5])  # the mean over episodes
    (per_token * weights).sum().backward()
    # d loss / d psi_0 = (1/2)(sigma(0.7) - 1) - (1/2) sigma(-0.7) = -sigma(-0.7) = -0.3318; psi_1 the opposite.
    assert batch.logprob.grad.tolist() == pytest.approx([-0.331812, -0.331812, 0.331812], abs=1e-5)


def test_pacs_balances_the_labels_of_a_group():
    batch = tokens([0.0] * 4, [0.0] * 4, [0.0] * 4, episode=[0, 1, 2, 3], reward=[1.0, 0.0, 0.0, 0.0])
    per_token, _ = objective("pacs", balance=True)(batch)
    assert per_token.tolist() == pytest.approx(np.log(2) * np.array([2, 2 / 3, 2 / 3, 2 / 3]), abs=1e-5)


def test_nft_by_hand():
    """r = 1/2. Right, w = 1.1: -log 1.1. Wrong, w = 1.2: (1 - 0.6) / 0.5 = 0.8, kept by floor 0.5: -log 0.8. Both
    times 1 - r = 1/2. A group that is all right teaches nothing."""
    new = np.log([1.1, 1.2, 1.3]).tolist()
    batch = tokens(new, [0.0] * 3, [0.0] * 3, episode=[0, 1, 2], group=[0, 0, 1], reward=[1.0, 0.0, 1.0])
    per_token, clipped = objective("nft", floor=0.5)(batch)
    assert per_token.tolist() == pytest.approx([-0.5 * np.log(1.1), -0.5 * np.log(0.8), 0], abs=1e-6)
    assert not clipped.any()
    per_token.sum().backward()
    # Wrong: 0.5 * (r w / (1 - r)) / 0.8 = 0.5 * 1.2 / 0.8 = 0.75.
    assert batch.logprob.grad.tolist() == pytest.approx([-0.5, 0.75, 0], abs=1e-6)


def test_nft_is_grpo_s_policy_gradient_on_policy():
    """Theorem of the paper: with w = 1 and `odds`, the gradient is -A with GRPO's population deviation."""
    reward = [1.0, 0.0, 0.0, 0.0]
    batch = tokens([0.0] * 4, [0.0] * 4, [0.0] * 4, episode=[0, 1, 2, 3], reward=reward)
    objective("nft", normalise="odds")(batch)[0].sum().backward()
    advantage = (np.array(reward) - 0.25) / np.std(reward)
    assert batch.logprob.grad.tolist() == pytest.approx((-advantage).tolist(), abs=1e-6)


@pytest.mark.parametrize("name", ["pacs", "nft"])
def test_losses_of_outcomes_refuse_other_rewards(name):
    batch = tokens([0.0], [0.0], [0.0], reward=[0.3])
    with pytest.raises(TrainError, match=r"reward 0\.3"):
        objective(name)(batch)


@pytest.mark.parametrize("name", LOSSES.built_in)
def test_a_broken_token_cannot_overflow(name):
    old = [-1000.0, -1.0]
    needed = {"ref_logprob": old, "entropy": [0.0, 1.0]}
    batch = tokens([0.0, -1.0], old, [-1.0, 1.0], episode=[0, 1], reward=[0.0, 1.0], **needed)
    assert torch.isfinite(objective(name)(batch)[0]).all()


def test_cross_entropy():
    per_token, clipped = objective("cross_entropy")(tokens([-1.0, -2.0], [0.0, 0.0], [1.0, 0.5]))
    assert per_token.tolist() == [1.0, 1.0]
    assert not clipped.any()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("ppo_clop", r"there is no loss 'ppo_clop'(.|\n)*did you mean 'ppo_clip'"),
        ({"use": "gspo", "tau_pos": 1}, r"gspo has no setting 'tau_pos'(.|\n)*sapo has it"),
        ({"use": "sapo", "tau_poss": 1}, r"no setting 'tau_poss'(.|\n)*did you mean 'tau_pos'"),
        ({"use": "ppo_clip", "clip_low": -1}, r"train.loss.clip_low: (.|\n)*found -1"),
        ({"use": 3.5}, "valid string"),
    ],
)
def test_a_wrong_loss_or_setting_names_the_right_one(settings, expected):
    with pytest.raises((RecipeError, ValueError), match=expected):
        load_loss(TrainSettings(loss=settings).loss)


def test_a_loss_of_one_s_own_comes_by_reference(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def squared(batch, settings):\n    return batch.logprob ** 2, batch.logprob > 0\n"
    )
    wanted = Objective.of(TrainSettings(loss="./mine.py:squared"), tmp_path)
    assert wanted(tokens([-3.0], [0.0], [1.0]))[0].tolist() == [9.0]
    with pytest.raises(RecipeError, match=r"squared has no setting 'clip_low'(.|\n)*ppo_clip, dapo"):
        load_loss(LossSettings(use="./mine.py:squared", clip_low=0.1), tmp_path)


@pytest.mark.parametrize(
    ("aggregation", "norm"),
    [
        ("token_mean", None),
        ("seq_mean_token_mean", None),
        ("seq_mean_turn_mean", None),
        ("group_mean", None),
        ("seq_mean_token_sum", None),
        ("seq_mean_token_sum_norm", 40.0),
    ],
)
def test_weights_belong_to_episodes_not_to_rows(aggregation, norm):
    """One row a branch or one a turn: every sampled token weighs the same."""
    rows = make_rows(groups=2, size=4)
    whole, split = token_weights(rows, aggregation, norm), token_weights(turn_rows(rows), aggregation, norm)
    flat = [np.concatenate([w[w > 0] for w in weights]) for weights in (whole, split)]
    assert flat[0].tolist() == flat[1].tolist()
    if "_mean" in aggregation and "sum" not in aggregation:
        assert sum(w.sum() for w in whole) == pytest.approx(1)


def test_weights_by_turn_and_by_group():
    """Episodes a (turns of 1 and 3 tokens) and b (one of 2) of group g, c (one of 4) of group h."""

    def row(id, group, *turns):
        mask = np.array([True] * sum(turns) + [False])
        ends = np.cumsum([0, *turns])
        spans = [(k, int(ends[k]), int(ends[k + 1])) for k in range(len(turns))]
        zeros = np.zeros(len(mask), np.float32)
        return TrainingSample(np.arange(len(mask)), mask, zeros, zeros, id, group, 0, turn_spans=spans)

    rows = [row("a", "g", 1, 3), row("b", "g", 2), row("c", "h", 4)]
    by_turn = [w.tolist() for w in token_weights(rows, "seq_mean_turn_mean")]
    # Three episodes; two turns in a, so 1 / (3 * 2 * 1) and 1 / (3 * 2 * 3).
    assert by_turn[0] == pytest.approx([1 / 6, 1 / 18, 1 / 18, 1 / 18, 0])
    assert by_turn[1] == pytest.approx([1 / 6, 1 / 6, 0])
    assert by_turn[2] == pytest.approx([1 / 12] * 4 + [0])
    by_group = [w.tolist() for w in token_weights(rows, "group_mean")]
    assert by_group == [
        pytest.approx([1 / 12] * 4 + [0]),
        pytest.approx([1 / 12] * 2 + [0]),
        pytest.approx([1 / 8] * 4 + [0]),
    ]


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
        {"importance": {"low": 0.5}},
        {"importance": {}, "old_logprobs": "engine"},
        {"importance": {"high": 0.9}},
        {"head_precision": "float32"},
        {"learning_rate": 1},
        {"lr": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad)).split("_")[0]):
        TrainSettings(**bad)


@pytest.mark.slow
def test_settings_rows_and_packing_do_without_torch():
    """A recipe is checked, and rows are made, where torch is not installed."""
    code = (
        "import agentrl.config.train, agentrl.types.sample, agentrl.training.model.packing, sys\n"
        "import agentrl.training.losses.registry\n"
        "agentrl.training.losses.registry.load_loss(agentrl.config.train.TrainSettings(loss='gspo').loss)\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_tea_by_hand():
    # Covariances: A - mean = 0.5, 0.5, -1; l - mean = 1, -0.5, -0.5: 0.5, -0.25 in one episode, 0.5 alone in another.
    # Shares exp(0.5) / (exp(0.5) + exp(-0.25)) = 0.679, 0.321; 1. Weights 10 * share, at most 5, and the ratio is 1.
    batch = tokens([-1.0, -2.5, -2.5], [-1.0, -2.5, -2.5], [1.0, 1.0, -0.5], episode=[0, 0, 1], entropy=[0.1, 0.2, 0.3])
    found, _ = objective("tea")(batch)
    assert found.tolist() == pytest.approx([-1.0 - 5 * 0.1, -1.0 - 3.208 * 0.2, 0.5 - 5 * 0.3], abs=1e-3)


def test_awr_weighs_by_the_exponential_of_the_advantage():
    batch = tokens([-1.0, -2.0, -1.0], [0.0] * 3, [0.5, -0.5, 2.0])
    loss, bounded = objective("awr", beta=0.5, max_weight=4.0)(batch)
    assert loss.tolist() == pytest.approx([math.e, 2 / math.e, 4.0])
    assert bounded.tolist() == [False, False, True]
    far = tokens([-1.0], [0.0], [1e4])
    objective("awr")(far)[0].sum().backward()
    assert far.logprob.grad.tolist() == [-20.0]


def test_entropy_sft_by_hand():
    # -l - entropy: 0.9, 2.0, 0.5, 1.5. The largest two of four train, each with twice its cross-entropy.
    entropy = [0.1, 0.5, 0.5, 0.5]
    batch = tokens([-1.0, -2.5, -1.0, -2.0], [0.0] * 4, [1.0] * 4, entropy=entropy)
    found, left = objective("entropy_sft", share=0.5)(batch)
    assert found.tolist() == [0.0, 5.0, 0.0, 4.0]
    assert left.tolist() == [True, False, True, False]


def test_trpa_by_hand():
    # Group 0: d = 0.5 (two tokens: 0.2 and 0.8), 0, -0.3; rewards 1, 0.5, 0. Group 1 is flat: no pair.
    # h = 2.5 * 0.1 * 0.5, 2.5 * 0.1 * 0.8, 0.1 * 0.3: the mean of -log sigmoid(h) is 0.63633.
    new, ref = [-1.0, -1.0, -1.0, -2.0, -1.0], [-1.2, -1.8, -1.0, -1.7, -1.0]
    reward, episode = [1.0, 1.0, 0.5, 0.0, 0.5], [0, 0, 1, 2, 3]
    batch = tokens(new, new, [0.0] * 5, reward=reward, episode=episode, group=[0, 0, 0, 0, 1], ref_logprob=ref)
    found, _ = objective("trpa")(batch)
    assert found.mean().item() == pytest.approx(0.63633, abs=1e-4)
    assert found[0] == found[1]
    assert found[4] == 0
    # Without a pair: -log sigmoid(0.5) at the top, -log sigmoid(0.3) below. The old policy is 0.1 away: k3 0.00517.
    flat = dataclasses.replace(batch, group=torch.arange(5)[[0, 0, 1, 2, 3]], old_logprob=batch.logprob.detach() + 0.1)
    found, _ = objective("trpa", trust=10.0)(flat)
    assert found.tolist() == pytest.approx(
        [1.25 / 2 * 0.4741 + 0.0517] * 2 + [1.25 * 0.6931 + 0.0517, 1.25 * 0.5544 + 0.0517, 1.25 * 0.6931 + 0.0517],
        abs=1e-3,
    )


def test_a_loss_that_reads_the_reference_says_so() -> None:
    """`train.kl` is not needed for it; without the word the error says what to write."""

    def mine(batch: Any, settings: Any) -> Any:
        return batch.ref_log_ratio, torch.zeros(len(batch.logprob), dtype=torch.bool)

    assert Loss("mine", mine, needs=["reference"]).needs == ["reference"]
    zeros, index = torch.zeros(2), torch.zeros(2, dtype=torch.long)
    batch = TokenBatch(zeros, zeros, zeros, zeros, zeros, zeros, index, index, index)
    with pytest.raises(TrainError, match="reads ref_logprob") as caught:
        mine(batch, None)
    assert 'needs=["reference"]' in (caught.value.remedy or "")
