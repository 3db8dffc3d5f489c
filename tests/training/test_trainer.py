from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch

from agentrl.config.train import TrainSettings
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.loss import Loss
from agentrl.training.losses.registry import LOSSES
from agentrl.training.trainer import Trainer
from agentrl.types.errors import DeadPolicy, TrainError

from .make import llama, make_rows, padded_logprobs, qwen3, turn_rows


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def settings(**changes) -> TrainSettings:
    return TrainSettings(**{"lr": 1e-3, "minibatch": 4, **changes})


def on_policy(trainer: Trainer, rows):
    """The rows as if the trainer's own policy had sampled them."""
    return [
        dataclasses.replace(row, behaviour_logprob=lp) for row, lp in zip(rows, trainer.logprobs(rows), strict=True)
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_logprobs_are_those_of_the_plain_model_at_the_row_s_temperature(temperature):
    model = qwen3()
    rows = [dataclasses.replace(row, temperature=temperature) for row in make_rows()]
    rows.append(dataclasses.replace(rows[0], temperature=2.0))
    ours = Trainer(model, settings(token_budget=70)).logprobs(rows)
    with torch.no_grad():
        theirs = padded_logprobs(model, rows).numpy()
    assert np.abs(np.concatenate([lp[row.loss_mask] for row, lp in zip(rows, ours, strict=True)]) - theirs).max() < 1e-5
    assert all((lp[~row.loss_mask] == 0).all() for row, lp in zip(rows, ours, strict=True))


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
@pytest.mark.parametrize("entropy_bonus", [0.0, 0.1])
def test_an_update_is_the_same_whatever_the_layout(aggregation, entropy_bonus):
    """A row a branch in one pack, in many packs, or a row a turn: the same gradient and the same metrics."""
    rows = make_rows(groups=2, size=4)
    shared = dict(minibatch=100, aggregation=aggregation, entropy_bonus=entropy_bonus, max_grad_norm=1e6)
    results = []
    for layout, budget in ((rows, 10**6), (rows, 80), (turn_rows(rows), 10**6), (turn_rows(rows), 80)):
        model = llama()
        metrics = Trainer(model, settings(token_budget=budget, **shared)).update(layout, seed=0)
        results.append((metrics["loss"], metrics["grad_norm"], metrics["entropy"], metrics["mismatch_mean"]))
    for other in results[1:]:
        assert other == pytest.approx(results[0], rel=2e-6, abs=1e-7)


EVERYTHING = {
    "kl": {"coef": 0.1, "estimator": "k3"},
    "importance": {"level": "sequence", "high": 1.5},
    "entropy_bonus": 0.05,
}


@pytest.mark.parametrize(
    ("name", "more"), [*((name, {}) for name in LOSSES.built_in), ("gspo", EVERYTHING), ("pacs", EVERYTHING)]
)
def test_packing_changes_no_loss(name, more):
    """All rows in one pack, or row by row; off policy, so that ratios, clips and sequence means are at work."""
    rows = [dataclasses.replace(row, reward=float(int(row.episode_id[-1]) % 2)) for row in make_rows(groups=2, size=4)]
    start, results = llama(), []
    rng = np.random.default_rng(0)
    rows = on_policy(Trainer(start, settings()), rows)
    noise = [rng.normal(0, 0.1, len(row.behaviour_logprob)).astype(np.float32) for row in rows]
    rows = [
        dataclasses.replace(r, behaviour_logprob=r.behaviour_logprob + r.loss_mask * x)
        for r, x in zip(rows, noise, strict=True)
    ]
    for budget in (10**6, 1):
        own = {"old_logprobs": "engine", **({"old_logprobs": "recompute", **more} if more else {})}
        own = settings(loss=name, token_budget=budget, minibatch=100, max_grad_norm=1e6, **own)
        trainer = Trainer(copy.deepcopy(start), own, reference=llama(seed=1))
        gradients = {}

        def keep(parameter, into=gradients):
            into[parameter] = parameter.grad.flatten().clone()

        for parameter in trainer.model.parameters():
            parameter.register_post_accumulate_grad_hook(keep)
        metrics = trainer.update(rows, seed=0)
        assert (metrics["packing_ratio"] > 1) == (budget > 1)
        gradient = torch.cat([gradients[parameter] for parameter in trainer.model.parameters()])
        results.append((gradient, metrics["loss"], metrics["clip_fraction"]))
    assert results[0][0].abs().max() > 1e-3
    assert (results[0][0] - results[1][0]).abs().max() < 2e-6
    assert results[0][1:] == pytest.approx(results[1][1:], abs=1e-6, rel=1e-6)


def test_kl_holds_the_policy_near_the_reference():
    rows, distances = make_rows(groups=2, size=4), []
    for coef in (1e-6, 10.0):
        model = llama()
        reference = copy.deepcopy(model)
        own = settings(minibatch=100, loss="reinforce", kl={"coef": coef, "estimator": "k2"})
        trainer = Trainer(model, own, reference=reference)
        for seed in range(6):
            metrics = trainer.update(rows, seed)
        distances.append(metrics["kl_ref"])
    assert distances[1] < 0.5 * distances[0]


def test_kl_without_a_reference_is_an_error():
    with pytest.raises(TrainError, match="the trainer has not: reference"):
        Trainer(llama(), settings(kl={"coef": 0.1}))


def test_losses_of_groups_keep_groups_together():
    seen = []

    def spy(batch: TokenBatch, own):
        seen.append(len(batch.group.unique()) * 100 + len(batch.episode.unique()))
        return -batch.logprob * batch.advantage, batch.logprob > 0

    for scope, expected in (("group", [103] * 4), ("step", None)):
        seen.clear()
        loss = Loss("spy", spy, scope=scope)
        Trainer(llama(), settings(loss={"use": loss}, minibatch=3)).update(make_rows(groups=4, size=3), 0)
        assert (seen == expected) == (scope == "group")


def test_updates_are_bitwise_reproducible():
    rows, results = make_rows(groups=3, size=4), []
    for _ in range(2):
        model = llama()
        trainer = Trainer(model, settings(epochs=2, entropy_bonus=0.01))
        metrics = [trainer.update(rows, seed) for seed in (1, 2)]
        results.append((weights(model), metrics))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_another_seed_draws_other_minibatches():
    results = []
    for seed in (1, 2):
        model = llama()
        Trainer(model, settings()).update(make_rows(groups=3, size=4), seed)
        results.append(weights(model))
    assert not torch.equal(*results)


def test_ratio_and_kl_are_measured_against_the_policy_before_the_first_step():
    model = llama()
    trainer = Trainer(model, settings(minibatch=100))
    rows = on_policy(trainer, make_rows(groups=2, size=4))
    first = trainer.update(rows, seed=0)
    assert first["ratio_mean"] == 1.0
    assert first["kl_old"] == 0.0
    assert first["mismatch_max"] < 1e-5
    # Two passes: the second sees the policy that the first has moved.
    rows = on_policy(trainer, rows)
    narrow = {"use": "ppo_clip", "clip_low": 0.01, "clip_high": 0.01}
    second = Trainer(model, settings(minibatch=100, epochs=2, lr=1e-2, loss=narrow)).update(rows, 0)
    assert second["kl_old"] > 1e-4
    assert second["clip_fraction"] > 0.1


@pytest.mark.parametrize("minibatch", [2, 100])
def test_recomputed_and_exact_engine_logprobs_give_the_same_update(minibatch):
    start, results = llama(), []
    rows = on_policy(Trainer(start, settings()), make_rows(groups=2, size=4))
    for source in ("recompute", "engine"):
        model = copy.deepcopy(start)
        metrics = Trainer(model, settings(old_logprobs=source, epochs=2, minibatch=minibatch)).update(rows, seed=3)
        results.append((weights(model), metrics))
    assert (results[0][0] - results[1][0]).abs().max() < 1e-4
    assert results[0][1]["kl_old"] == pytest.approx(results[1][1]["kl_old"], rel=1e-3)
    assert results[0][1]["kl_old"] > 0


def test_mismatch_is_found_whatever_the_denominator():
    trainer = Trainer(llama(), settings(minibatch=100))
    rows = on_policy(trainer, make_rows())
    rows[0].behaviour_logprob[rows[0].loss_mask] -= 0.5
    for source in ("recompute", "engine"):
        metrics = Trainer(llama(), settings(old_logprobs=source, minibatch=100)).update(rows, seed=0)
        assert metrics["mismatch_max"] == pytest.approx(0.5, abs=1e-4)


def test_advantages_move_probabilities():
    model = llama()
    trainer = Trainer(model, settings(minibatch=100))
    rows = on_policy(trainer, make_rows(groups=2, size=4))
    for seed in range(5):
        trainer.update(rows, seed)
    change = [
        ((now - row.behaviour_logprob) * row.advantage)[row.loss_mask]
        for now, row in zip(trainer.logprobs(rows), rows, strict=True)
    ]
    assert np.concatenate(change).mean() > 0.05


def test_entropy_bonus_raises_entropy():
    rows = [dataclasses.replace(row, advantage=np.full_like(row.advantage, 1e-9)) for row in make_rows()]
    model = llama()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(6)  # far from uniform
    trainer = Trainer(model, settings(minibatch=100, entropy_bonus=0.1))
    entropies = [trainer.update(rows, seed)["entropy"] for seed in range(5)]
    assert entropies == sorted(entropies)
    assert entropies[-1] > entropies[0] + 0.05


def test_where_nothing_teaches_the_entropy_bonus_does_not_either():
    """Alone it made a policy uniform that never succeeded in its first iterations."""
    rows = [dataclasses.replace(row, advantage=np.zeros_like(row.advantage)) for row in make_rows()]
    trainer = Trainer(llama(), settings(minibatch=100, entropy_bonus=0.1, lr=0.1))
    before = trainer.logprobs(rows)
    found = trainer.update(rows, 0)
    assert found["grad_norm"] == 0
    assert found["entropy"] > 0
    np.testing.assert_array_equal(np.concatenate(trainer.logprobs(rows)), np.concatenate(before))


def test_minibatches_are_even_and_counted():
    trainer = Trainer(llama(), settings(minibatch=4, epochs=2))
    metrics = trainer.update(make_rows(groups=3, size=3), seed=0)  # 9 episodes: 3 + 3 + 3, not 4 + 4 + 1
    assert metrics["steps"] == trainer.steps == 6
    assert metrics["tokens"] == 2 * sum(row.loss_mask.sum() for row in make_rows(groups=3, size=3))
    assert metrics["packing_ratio"] > 1


def test_warm_up():
    trainer = Trainer(llama(), settings(warmup_steps=4, minibatch=100))
    assert [trainer.update(make_rows(), 0)["lr"] for _ in range(6)] == pytest.approx(
        [0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3]
    )


@pytest.mark.parametrize(("schedule", "half"), [("constant", 1e-3), ("linear", 0.5e-3), ("cosine", 0.5e-3)])
def test_schedule(schedule, half):
    trainer = Trainer(llama(), settings(lr_schedule=schedule, minibatch=100))
    rates = [trainer.update(make_rows(), 0, progress)["lr"] for progress in (0.0, 0.5, 0.75)]
    # cosine at 3/4: (1 + cos(3 pi / 4)) / 2 = 0.14645
    late = {"constant": 1e-3, "linear": 0.25e-3, "cosine": 0.14645e-3}[schedule]
    assert rates == pytest.approx([1e-3, half, late], rel=1e-4)


def test_weight_decay_spares_norms():
    rows = [dataclasses.replace(row, advantage=np.zeros_like(row.advantage)) for row in make_rows()]
    model = llama()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    Trainer(model, settings(weight_decay=0.5, lr=0.1, minibatch=100)).update(rows, 0)
    for name, p in model.named_parameters():
        assert torch.allclose(p, before[name] * (0.95 if p.ndim == 2 else 1.0)), name


def test_state_continues_exactly():
    rows = make_rows(groups=2, size=4)
    straight = llama()
    trainer = Trainer(straight, settings(warmup_steps=5))
    trainer.update(rows, 0)
    saved, at = copy.deepcopy(trainer.state_dict()), copy.deepcopy(straight)
    trainer.update(rows, 1)
    resumed = Trainer(at, settings(warmup_steps=5))
    resumed.load_state_dict(saved)
    resumed.update(rows, 1)
    assert torch.equal(weights(straight), weights(at))
    assert resumed.steps == trainer.steps


def test_a_changed_learning_rate_takes_effect_after_loading():
    trainer, slow = Trainer(llama(), settings()), Trainer(llama(), settings(lr=1e-5, weight_decay=0.1))
    trainer.update(make_rows(), 0)
    slow.load_state_dict(trainer.state_dict())
    assert [(g["lr"], g["weight_decay"]) for g in slow.optimizer.param_groups] == [(1e-5, 0.1), (1e-5, 0.0)]


def poisoned(rows, field):
    values = getattr(rows[2], field).copy()
    values[np.flatnonzero(rows[2].loss_mask)[0]] = np.inf
    return [*rows[:2], dataclasses.replace(rows[2], **{field: values}), *rows[3:]]


@pytest.mark.parametrize("field", ["advantage", "behaviour_logprob"])
def test_rows_with_an_infinite_number_are_refused_by_name(field):
    rows, model = make_rows(), llama()
    before = weights(model)
    with pytest.raises(TrainError, match=rf"episode {rows[2].episode_id}, branch {rows[2].branch_id}"):
        Trainer(model, settings()).update(poisoned(rows, field), 0)
    assert torch.equal(weights(model), before)


def test_a_loss_that_is_not_finite_leaves_weights_and_optimiser_alone():
    """Fault injection: a loss that breaks on one episode, in the second step."""
    rows, model = make_rows(groups=2, size=2), llama()
    calls = []

    def broken(batch: TokenBatch, settings):
        calls.append(weights(model))
        per_token = -batch.logprob * batch.advantage
        if len(calls) == 2:
            per_token = torch.where(batch.episode == 0, torch.nan, per_token)
        return per_token, per_token > torch.inf

    trainer = Trainer(model, settings(loss={"use": broken}, minibatch=2))
    with pytest.raises(TrainError, match=r"the loss of step 2 is not finite \(episodes g\d/e\d\)"):
        trainer.update(rows, 0)
    assert torch.equal(weights(model), calls[1])
    assert not torch.equal(calls[0], calls[1])
    assert trainer.steps == 1
    assert all(p.grad is None for p in model.parameters())


def test_a_policy_whose_log_probabilities_are_nan_is_dead():
    rows, model = make_rows(groups=1, size=2), llama()
    trainer = Trainer(model, settings())
    with torch.no_grad():
        model.lm_head.weight[0, 0] = torch.nan
    before = weights(model)
    with pytest.raises(DeadPolicy, match=r"not finite in step 1\n  -> [\s\S]*earlier checkpoint"):
        trainer.update(rows, 0)
    with pytest.raises(DeadPolicy, match="logits are not finite"):  # a checkpoint of it
        Trainer(model, settings())
    assert torch.equal(weights(model).nan_to_num(9), before.nan_to_num(9))
    assert all(p.grad is None for p in model.parameters())


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone():
    rows, model = make_rows(groups=1, size=2), llama()
    before = weights(model)
    trainer = Trainer(model, settings())
    handle = model.lm_head.register_full_backward_hook(lambda module, grads, out: tuple(g * torch.inf for g in grads))
    with pytest.raises(TrainError, match=r"the gradient of step 1 is not finite \(episodes g0/e0, g0/e1\)"):
        trainer.update(rows, 0)
    assert torch.equal(weights(model), before)
    handle.remove()
    trainer.update(rows, 0)


def test_nothing_to_train_on_is_an_error():
    with pytest.raises(TrainError, match="without a token to train on"):
        Trainer(llama(), settings()).update([], 0)


def test_weights_without_the_frozen_ones_are_those_that_training_changes():
    trainer = Trainer(llama(), TrainSettings(lr=1e-2, trainable={"top_layers": 1}))
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    trainer.update(make_rows(), seed=0)
    after = trainer.weights()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    trained = trainer.weights("bfloat16", frozen=False)
    assert trained.keys() == changed
    assert {tensor.dtype for tensor in trained.values()} == {torch.bfloat16}
