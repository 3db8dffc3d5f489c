"""The critic: it learns what it is asked, leaves the policy alone, and continues exactly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from agentrl.config.train import CriticSettings, TrainSettings
from agentrl.training.auxiliary.critic import Critic, value_loss
from agentrl.training.auxiliary.models import required_models
from agentrl.training.trainer import Trainer
from agentrl.types.sample import by_turn
from tests.training.make import llama, make_rows


def critic(model, budget: int = 4096, **settings) -> Critic:
    own = TrainSettings(critic=CriticSettings(**settings), token_budget=budget)
    made = Trainer(model, own, auxiliary=required_models(own, {"value"})).auxiliary["value"]
    assert isinstance(made, Critic)
    return made


def targets_of(rows, value) -> list[np.ndarray]:
    return [np.where(row.loss_mask, np.float32(value), np.float32(np.nan)) for row in rows]


@pytest.mark.parametrize("body", ["policy", "copy"])
def test_values_come_to_their_targets_and_the_policy_stays(body: str) -> None:
    model, rows = llama(), make_rows()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learner = critic(model, body=body, lr=0.05, body_lr=1e-3, steps=40, clip=None)
    assert all(not values.any() for values in learner.predict(rows))
    found = learner.fit_values(rows, targets_of(rows, 0.7))
    assert found["value_loss"] < 0.01
    values = np.concatenate([v[row.loss_mask] for row, v in zip(rows, learner.predict(rows), strict=True)])
    assert abs(values.mean() - 0.7) < 0.05
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_only_tokens_that_are_asked_count() -> None:
    model, rows = llama(), make_rows()
    targets = targets_of(rows, np.nan)
    row = rows[0]
    at = row.turn_spans[0][1]
    targets[0][at] = 2.0
    learner = critic(model, steps=1, clip=None)
    # One token asked, value 0: (0 - 2)^2 / 2, whatever the other rows hold.
    assert learner.fit_values(rows, targets)["value_loss"] == pytest.approx(2.0)
    assert critic(model, steps=1).fit_values(rows, targets_of(rows, np.nan))["value_loss"] == 0


def test_a_value_stops_at_the_clip() -> None:
    value = torch.tensor([0.2, 1.0, 1.0], requires_grad=True)
    target, old = torch.tensor([3.0, 3.0, 0.0]), torch.zeros(3)
    # Within the clip; beyond it towards the target (held at 0.5: no slope); beyond it away from the target.
    loss = value_loss(value, target, old, 0.5)
    np.testing.assert_allclose(loss.detach(), [2.8**2 / 2, 2.5**2 / 2, 1 / 2], rtol=1e-6)
    loss.sum().backward()
    np.testing.assert_allclose(value.grad, [-2.8, 0, 1], rtol=1e-6)


def test_the_layout_changes_nothing() -> None:
    rows = make_rows()
    rng = np.random.default_rng(0)
    targets = [np.where(row.loss_mask, rng.normal(size=len(row.token_ids)), np.nan).astype(np.float32) for row in rows]
    whole, split = critic(llama(), steps=3), critic(llama(), budget=40, steps=3)
    assert whole.fit_values(rows, targets)["value_loss"] == pytest.approx(
        split.fit_values(rows, targets)["value_loss"], rel=1e-5
    )
    for a, b in zip(whole.predict(rows), split.predict(rows), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.slow
def test_progress_sums_up_to_the_reward() -> None:
    rows = [
        dataclasses.replace(row, reward=float(number % 2)) for number, row in enumerate(make_rows(groups=2, size=2))
    ]
    reward = {row.episode_id: row.reward for row in rows}  # the last branch's, as it is read
    rows = [dataclasses.replace(row, reward=reward[row.episode_id]) for row in rows]
    learner = critic(llama(), budget=60, lr=0.05, steps=50)
    first = critic(llama(), steps=1).fit_progress(rows)["progress_loss"]
    assert first == pytest.approx(np.mean([value**2 for value in reward.values()]))  # nothing is said yet
    assert learner.fit_progress(rows)["progress_loss"] < 0.2 * first


def test_a_critic_continues_exactly() -> None:
    rows = make_rows()
    for body in ("policy", "copy"):
        whole = critic(llama(), body=body, steps=2)
        whole.fit_values(rows, targets_of(rows, 1.0))
        state = whole.state_dict()
        saved = torch.load(_through_disk(state), weights_only=True)
        whole.fit_values(rows, targets_of(rows, 1.0))
        again = critic(llama(), body=body, steps=2)
        again.load_state_dict(saved)
        again.fit_values(rows, targets_of(rows, 1.0))
        for a, b in zip(whole.predict(rows), again.predict(rows), strict=True):
            np.testing.assert_array_equal(a, b)


def _through_disk(state):
    import io

    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return buffer


def test_columns_come_back_turn_after_turn() -> None:
    rows = make_rows(groups=1, size=1)  # this episode branches: two rows
    columns = by_turn(rows, [row.token_ids for row in rows])
    spans = sorted((turn, row.token_ids[start:end].tolist()) for row in rows for turn, start, end in row.turn_spans)
    assert columns[rows[0].episode_id].tolist() == [token for _, tokens in spans for token in tokens]
