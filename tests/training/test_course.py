"""Training on samples that are there from the start: steps that go on anywhere, preference steps on packed trees."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from agentrl.config.train import PreferenceLossSettings, TrainSettings
from agentrl.training.stages.course import CROSS_ENTROPY, Course
from agentrl.training.supervised.preferences import mismatched
from agentrl.training.trainer import Trainer
from agentrl.types.errors import TrainError
from agentrl.types.sample import TrainingSample

from .make import llama, make_rows, padded_logprobs, taken


def demonstrations(**sizes: int) -> list[TrainingSample]:
    return [dataclasses.replace(row, advantage=row.loss_mask.astype(np.float32)) for row in make_rows(**sizes)]


def pairs(groups: int = 3, temperature: float = 1.0) -> list[TrainingSample]:
    """Of each group its first two episodes (the first branches), the first of them chosen."""
    rows = [row for row in make_rows(groups=groups, size=2) if row.group_id]
    return [
        dataclasses.replace(row, reward=float(row.episode_id.endswith("e0")), temperature=temperature) for row in rows
    ]


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.slow
def test_it_learns_what_is_demonstrated():
    model, samples = llama(), demonstrations(groups=1, size=2)
    course = Course(samples, steps=60, batch=2, lr=1e-2, seed=0)
    losses = [found["loss"] for found in taken(course, Trainer(model, settings()))]
    assert losses[0] > 4
    assert np.mean(losses[-6:]) < 1.5


def settings() -> TrainSettings:
    return TrainSettings(lr=1e-3)


def test_a_course_that_goes_on_takes_the_same_steps():
    course = Course(demonstrations(groups=3), steps=9, batch=4, lr=1e-3, seed=7)
    whole = Trainer(llama(), settings())
    expected = list(taken(course, whole))
    first = Trainer(llama(), settings())
    found = [metrics for _, metrics in zip(range(4), taken(course, first), strict=False)]
    second = Trainer(copy.deepcopy(first.model), settings())
    second.load_state_dict(first.state_dict())
    found += list(taken(course, second, first=4))
    assert found == expected
    assert torch.equal(weights(second.model), weights(whole.model))


def test_the_rate_rises_and_falls_to_nothing():
    course = Course([], steps=100, batch=1, lr=2.0, seed=0)
    rates = [course.rate(step) for step in range(100)]
    assert rates[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert rates[5] > rates[50] > rates[99] > 0
    assert Course([], steps=1, batch=1, lr=2.0, seed=0).rate(0) == 2.0


def test_pairs_stay_together():
    course = Course(pairs(groups=5), steps=6, batch=2, lr=1e-3, seed=0, pairs=True)
    for _, samples in course._batches(0):
        groups = {sample.group_id for sample in samples}
        assert 1 <= len(groups) <= 2
        for group in groups:
            members = {sample.episode_id for sample in samples if sample.group_id == group}
            assert members == {f"{group}/e0", f"{group}/e1"}


def test_a_step_of_fresh_optimiser_leaves_the_trainers_own():
    trainer = Trainer(llama(), settings())
    before = copy.deepcopy(trainer.state_dict())
    trainer.fit(demonstrations(), CROSS_ENTROPY, lr=1e-3, fresh=True)
    assert trainer.state_dict() == before


def episode_sums(model, samples: list[TrainingSample]) -> dict[str, torch.Tensor]:
    """Log-probability of each episode's trained tokens, by the model's own attention on padded rows."""
    parts = padded_logprobs(model, samples).split([int(sample.loss_mask.sum()) for sample in samples])
    sums: dict[str, torch.Tensor] = {}
    for sample, part in zip(samples, parts, strict=True):
        sums[sample.episode_id] = sums.get(sample.episode_id, 0) + part.sum()
    return sums


@pytest.mark.parametrize("budget", [16384, 40])
def test_dpo_on_packed_trees_is_dpo_on_padded_rows(budget):
    """The loss, the metrics and the gradient, of episodes that branch too, in one pack and in many."""
    samples, reference = pairs(), llama(seed=1)
    trainer = Trainer(llama(), TrainSettings(token_budget=budget, max_grad_norm=1e9), reference=reference)
    kept = {}
    for name, parameter in trainer.model.named_parameters():
        parameter.register_hook(lambda grad, name=name: kept.__setitem__(name, kept.get(name, 0) + grad.clone()))
    found = trainer.fit(samples, PreferenceLossSettings(use="dpo", beta=0.3), lr=1e-3)
    own = llama()
    theirs, ours = episode_sums(reference, samples), episode_sums(own, samples)
    ratios = {id: ours[id] - theirs[id].detach() for id in ours}
    margins = torch.stack([ratios[f"g{k}/e0"] - ratios[f"g{k}/e1"] for k in range(3)])
    loss = -logsigmoid(0.3 * margins).mean()
    loss.backward()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert found["margin"] == pytest.approx(margins.mean().item(), abs=1e-4)
    assert found["accuracy"] == pytest.approx((margins > 0).float().mean().item())
    expected = torch.cat([parameter.grad.flatten() for parameter in own.parameters()])
    gradient = torch.cat([kept[name].flatten() for name, _ in own.named_parameters()])
    assert (gradient - expected).norm() < 1e-5 * expected.norm()


def test_ktos_baseline_is_the_log_ratio_of_mismatched_episodes():
    samples = [sample for sample in pairs() if sample.episode_id.endswith("e1")]
    strangers = mismatched(samples)
    assert [stranger.group_id for stranger in strangers] == ["g0", "g1", "g2"]
    start = [int(np.flatnonzero(sample.loss_mask)[0]) for sample in samples]
    assert strangers[0].token_ids.tolist() == [
        *samples[0].token_ids[: start[0]].tolist(), *samples[1].token_ids[start[1] :].tolist()
    ]  # fmt: skip
    assert strangers[0].loss_mask.sum() == samples[1].loss_mask.sum()
    policy, reference = llama(), llama(seed=1)
    with torch.no_grad():
        ratios = [
            [sums[stranger.episode_id].item() for stranger in strangers]
            for sums in (episode_sums(model, strangers) for model in (policy, reference))
        ]
        z = max(0.0, float(np.mean(np.subtract(*ratios))))
        ratio = np.subtract(*(
            [sums[sample.episode_id].item() for sample in samples]
            for sums in (episode_sums(model, samples) for model in (policy, reference))
        ))  # fmt: skip
    found = Trainer(policy, settings(), reference=reference).fit(samples, PreferenceLossSettings(use="kto"), lr=1e-3)
    assert found["loss"] == pytest.approx(np.mean(1 - 1 / (1 + np.exp(-0.1 * (z - ratio)))), rel=1e-4)
    assert "margin" not in found
    assert mismatched(samples[:1]) == []


def test_a_preference_loss_without_a_reference_policy_is_refused():
    with pytest.raises(TrainError, match="reference"):
        Trainer(llama(), settings()).fit(pairs(), PreferenceLossSettings(), lr=1e-3)
    found = Trainer(llama(), settings()).fit(pairs(), PreferenceLossSettings(use="simpo"), lr=1e-3)
    assert -10 < found["chosen"] < 0


@pytest.mark.slow
def test_preferences_are_learned():
    trainer = Trainer(llama(), settings(), reference=llama())
    course = Course(pairs(groups=4), 30, 2, 3e-3, 0, PreferenceLossSettings(), pairs=True)
    (last,) = deque(taken(course, trainer), maxlen=1)
    assert last["accuracy"] == 1.0
    assert last["margin"] > 5
