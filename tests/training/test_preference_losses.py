"""The preference losses against TRL's own code on fixed tensors: values, and gradients token by token."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from agentrl.config.train import PreferenceLossSettings
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.objective import Objective
from agentrl.training.losses.registry import PREFERENCE_LOSSES, load_loss
from agentrl.types.errors import RecipeError, TrainError

PAIRS = [(5, 3), (2, 7), (1, 1), (4, 4)]
"""Trained tokens of the chosen and of the rejected episode of each pair."""
LENGTHS = [lengths[side] for side in (0, 1) for lengths in PAIRS]  # in TRL's order: all chosen, then all rejected
WIDTH = max(LENGTHS)


def fixed() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities of policy and reference, and which of them count: [2 P, width]."""
    generator = torch.Generator().manual_seed(0)
    policy, reference = (-3 * torch.rand(len(LENGTHS), WIDTH, generator=generator) - 0.05 for _ in range(2))
    # Trained tokens with others between them, as observations are.
    mask = torch.stack([torch.arange(WIDTH) % 2 == 0 if n == 4 else torch.arange(WIDTH) < n for n in LENGTHS])
    return policy.requires_grad_(), reference, mask


def batch_of(policy: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, baseline: float = 0.0) -> TokenBatch:
    """The tokens that count, episode after episode, with weights of `seq_mean_token_mean`."""
    sizes, half = mask.sum(1), len(LENGTHS) // 2
    episode = torch.arange(len(LENGTHS)).repeat_interleave(sizes)
    zeros = torch.zeros(int(sizes.sum()))
    return TokenBatch(
        logprob=policy[mask], old_logprob=zeros, behaviour_logprob=zeros, advantage=zeros + baseline,
        reward=(episode < half).float(), weight=1 / (len(LENGTHS) * sizes[episode]), episode=episode, turn=episode,
        group=episode % half, ref_logprob=reference[mask],
    )  # fmt: skip


def ours(use: str, baseline: float = 0.0, **settings: float) -> tuple[float, torch.Tensor]:
    policy, reference, mask = fixed()
    batch = batch_of(policy, reference, mask, baseline)
    loss = (Objective.alone(PreferenceLossSettings(use=use, **settings))(batch)[0] * batch.weight).sum()
    loss.backward()
    return loss.item(), policy.grad


def assert_equal(own: tuple[float, torch.Tensor], trl: tuple[float, torch.Tensor]) -> None:
    """Loss and gradient, to the rounding of float32."""
    assert own[0] == pytest.approx(trl[0], rel=1e-6)
    assert torch.allclose(own[1], trl[1], rtol=1e-5, atol=1e-7)


class Accelerator:
    device = torch.device("cpu")

    def gather(self, value):
        return value

    gather_for_metrics = gather


def outputs_of(policy: torch.Tensor, mask: torch.Tensor) -> SimpleNamespace:
    """What TRL reads of its fused output layer: 0 where a token does not count."""
    nothing = torch.zeros_like(policy)
    return SimpleNamespace(log_probs=policy * mask, entropy=nothing, mean_logits=nothing, is_top1=nothing > 0)


def trainer_of(**settings) -> SimpleNamespace:
    """What the losses of TRL's trainers read of their trainer."""
    common = {
        "model": SimpleNamespace(training=False), "accelerator": Accelerator(), "aux_loss_enabled": False,
        "precompute_ref_logps": True, "_metrics": {"eval": defaultdict(list)}, "_total_train_tokens": 0,
    }  # fmt: skip
    return SimpleNamespace(**common, **settings)


def dpo_trainer(loss_types: list[str], weights: list[float], beta: float) -> tuple[float, torch.Tensor]:
    from trl import DPOTrainer

    policy, reference, mask = fixed()
    fake = trainer_of(
        loss_types=loss_types, loss_weights=weights, beta=beta, ld_alpha=None, label_smoothing=0.0,
        f_divergence_type="reverse_kl", use_weighting=False,
    )  # fmt: skip
    chosen, rejected = ((reference * mask).sum(1)).chunk(2)
    completion = functional.pad(mask.long(), (1, 0))  # a token of the prompt before
    inputs = {
        "input_ids": completion, "attention_mask": torch.ones_like(completion), "completion_mask": completion,
        "ref_chosen_logps": chosen, "ref_rejected_logps": rejected,
    }  # fmt: skip
    loss = DPOTrainer._compute_loss(fake, lambda **_: outputs_of(policy, mask), inputs, False)
    loss.backward()
    return loss.item(), policy.grad


@pytest.mark.parametrize(
    ("use", "settings", "theirs"),
    [
        ("dpo", {}, "sigmoid"),
        ("dpo", {"beta": 0.7}, "sigmoid"),
        ("dpo", {"per_token": True}, "sigmoid_norm"),
        ("dpo", {"sft": 0.5}, "sigmoid"),
        ("ipo", {}, "ipo"),
        ("ipo", {"beta": 0.4}, "ipo"),
        ("hinge", {"beta": 0.3}, "hinge"),
        ("apo_zero", {}, "apo_zero"),
    ],
)
def test_losses_with_a_reference_are_those_of_trls_dpo_trainer(use, settings, theirs):
    sft = settings.get("sft", 0.0)
    types, weights = ([theirs, "sft"], [1.0, sft]) if sft else ([theirs], [1.0])
    value, gradient = dpo_trainer(types, weights, settings.get("beta", 0.1))
    assert_equal(ours(use, **settings), (value, gradient))
    assert gradient.abs().max() > 1e-4


def alone(loss, mean: bool) -> tuple[float, torch.Tensor]:
    """A loss of TRL that takes the log-probability of each sequence, without its cross-entropy."""
    policy, _, mask = fixed()
    logps = (policy * mask).sum(1) / (mask.sum(1) if mean else 1)
    found = loss(*logps.chunk(2))
    found.backward()
    return found.item(), policy.grad


@pytest.mark.parametrize(
    ("use", "kind", "settings"),
    [
        ("simpo", "simpo", {}),
        ("simpo", "simpo", {"beta": 1.5, "gamma": 0.3}),
        ("cpo", "sigmoid", {"beta": 0.2}),
    ],
)
def test_losses_without_a_reference_are_those_of_trls_cpo_trainer(use, kind, settings):
    from trl.experimental.cpo import CPOTrainer

    beta = settings.get("beta", 2.0)
    fake = SimpleNamespace(
        alpha=0.0, beta=beta, loss_type=kind, simpo_gamma=settings.get("gamma", 1.0), label_smoothing=0.0,
        accelerator=Accelerator(),
    )  # fmt: skip
    value, gradient = alone(lambda *logps: CPOTrainer.cpo_loss(fake, *logps)[0].mean(), mean=kind == "simpo")
    assert_equal(ours(use, **{**settings, "sft": 0.0}), (value, gradient))


def test_orpo_is_that_of_trls_orpo_trainer():
    from trl.experimental.orpo import ORPOTrainer

    fake = SimpleNamespace(beta=0.3, accelerator=Accelerator())
    value, gradient = alone(lambda *logps: -ORPOTrainer.odds_ratio_loss(fake, *logps)[0].mean(), mean=True)
    assert_equal(ours("orpo", beta=0.3, sft=0.0), (value, gradient))


def test_the_cross_entropy_is_a_mean_over_all_chosen_tokens():
    policy, _, mask = fixed()
    expected = -policy[: len(PAIRS)][mask[: len(PAIRS)]].mean()
    whole, without = (ours("orpo", sft=sft)[0] for sft in (1.0, 0.0))
    assert whole - without == pytest.approx(expected.item(), abs=1e-6)


def kto_trainer(beta: float, desirable: float, undesirable: float, kl: float) -> tuple[float, torch.Tensor]:
    from trl import KTOTrainer

    policy, reference, mask = fixed()
    fake = trainer_of(
        loss_type="kto", beta=beta, desirable_weight=desirable, undesirable_weight=undesirable,
        calculate_KL=True, _compute_kl_logps=lambda model, batch: torch.full((len(LENGTHS),), kl),
    )  # fmt: skip
    completion = functional.pad(mask.long(), (1, 0))
    inputs = {
        "input_ids": completion, "attention_mask": torch.ones_like(completion), "completion_mask": completion,
        "label": torch.arange(len(LENGTHS)) < len(PAIRS), "ref_logps": (reference * mask).sum(1),
        "ref_KL_logps": torch.zeros(len(LENGTHS)),
    }  # fmt: skip
    loss = KTOTrainer._compute_loss(fake, lambda **_: outputs_of(policy, mask), inputs, False)
    loss.backward()
    return loss.item(), policy.grad


def test_kto_is_that_of_trls_kto_trainer():
    value, gradient = kto_trainer(0.2, 1.3, 0.7, kl=0.4)
    assert_equal(ours("kto", baseline=0.4, beta=0.2, desirable=1.3, undesirable=0.7), (value, gradient))


def test_label_smoothing_mixes_the_loss_with_that_of_swapped_labels():
    """Conservative DPO: (1 - e) L(c, r) + e L(r, c)."""
    policy, reference, mask = fixed()
    chosen, rejected = (((policy - reference) * mask).sum(1)).chunk(2)
    straight, swapped = (
        -functional.logsigmoid(0.1 * margin).mean() for margin in (chosen - rejected, rejected - chosen)
    )
    assert ours("dpo", label_smoothing=0.2)[0] == pytest.approx((0.8 * straight + 0.2 * swapped).item(), abs=1e-6)


def test_every_preference_loss_is_compared():
    assert {
        "dpo",
        "ipo",
        "hinge",
        "apo_zero",
        "simpo",
        "cpo",
        "orpo",
        "kto",
        "tpo",
    } == PREFERENCE_LOSSES.built_in.keys()


@pytest.mark.parametrize("use", ["dpo", "simpo"])
def test_groups_that_are_no_pairs_are_refused(use):
    policy, reference, mask = fixed()
    batch = batch_of(policy, reference, mask)
    for reward in (torch.ones_like(batch.reward), 1.0 * (batch.episode != 0)):
        odd = TokenBatch(**{**vars(batch), "reward": reward})
        with pytest.raises(TrainError, match="not a pair"):
            Objective.alone(PreferenceLossSettings(use=use))(odd)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"use": "dop"}, "preference.loss: there is no preference loss 'dop'\n  -> did you mean 'dpo'?"),
        ({"use": "ipo", "gamma": 1}, "preference.loss.gamma: ipo has no setting 'gamma'\n  -> simpo, tpo have it"),
    ],
)
def test_unknown_losses_and_settings_are_named(settings, said):
    with pytest.raises(RecipeError) as error:
        load_loss(PreferenceLossSettings.model_validate(settings))
    assert str(error.value).startswith(said)


def test_tpo_by_hand() -> None:
    """Gold: two tokens with -1 and -3; chosen -1, rejected -2. The pair: -log sigmoid(0.5); the gold: 2 * 2."""
    logprob, index = torch.tensor([-1.0, -3.0, -1.0, -2.0]), torch.tensor([0, 0, 1, 2])
    zeros, reward = torch.zeros(4), torch.tensor([2.0, 2.0, 1.0, 0.0])
    batch = TokenBatch(logprob, zeros, zeros, zeros, reward, zeros, index, index, torch.zeros(4, dtype=torch.long))
    found, _ = Objective.alone(PreferenceLossSettings(use="tpo", beta=0.5, alpha=2.0))(batch)
    assert found.tolist() == pytest.approx([0.4741 + 4.0] * 4, abs=1e-4)
    with pytest.raises(TrainError, match="not a gold, a chosen and a rejected"):
        Objective.alone(PreferenceLossSettings(use="tpo"))(dataclasses.replace(batch, reward=reward.clamp(max=1)))
