"""Log-probabilities and entropies of predictions, and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from agentrl.training.model import scores
from agentrl.training.model.scores import token_scores

COUNT, VOCABULARY = 7, 300


def exact(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, entropy: str
) -> tuple[torch.Tensor, torch.Tensor]:
    every = (logits.double() / temperature).log_softmax(-1)
    logprob = every.gather(1, targets[:, None])[:, 0]
    seen = every if entropy == "gradient" else every.detach()
    found = -(seen.exp() * seen).sum(-1)
    return logprob, found if entropy != "none" else torch.zeros_like(logprob)


@pytest.mark.parametrize("entropy", ["none", "value", "gradient"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("at_a_time", [1, 2 * VOCABULARY, 2**24])
def test_scores_and_gradients_are_exact(entropy, temperature, at_a_time, monkeypatch):
    for name in ("IN_CACHE", "AT_A_TIME"):
        monkeypatch.setattr(scores, name, at_a_time)
    torch.manual_seed(0)
    logits = (6 * torch.randn(COUNT, VOCABULARY)).requires_grad_()
    targets, weights = torch.randint(VOCABULARY, (COUNT,)), torch.randn(2, COUNT)
    gradients = []
    for way in (lambda: token_scores(logits, targets, temperature=temperature, entropy=entropy),
                lambda: exact(logits, targets, temperature, entropy)):  # fmt: skip
        logprob, found = way()
        total = (logprob * weights[0]).sum() + (found * weights[1] if entropy == "gradient" else found.detach()).sum()
        gradients.append((logprob.double(), found.double(), torch.autograd.grad(total, logits)[0]))
    for ours, theirs in zip(*gradients, strict=True):
        assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("entropy", ["none", "gradient"])
@pytest.mark.parametrize(("offset", "temperature"), [(0, 1.0), (0, 0.1), (-100, 1.0), (3000, 1.0)])
def test_gradients_keep_their_precision(entropy, offset, temperature):
    """Also where logits are far from 0, or far from each other."""
    torch.manual_seed(0)
    logits = (3 * torch.randn(COUNT, VOCABULARY) + offset).requires_grad_()
    targets, weights = torch.randint(VOCABULARY, (COUNT,)), torch.randn(2, COUNT)
    ours, theirs = (
        torch.autograd.grad((logprob * weights[0]).sum() + (found * weights[1]).sum(), logits)[0].double()
        for logprob, found in (
            token_scores(logits, targets, temperature=temperature, entropy=entropy),
            exact(logits, targets, temperature, entropy),
        )
    )
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    assert ours.sum(-1).abs().max() < 1e-5 * theirs.abs().max()


def test_the_gradient_has_the_precision_of_the_logits():
    logits = torch.randn(COUNT, VOCABULARY).bfloat16().requires_grad_()
    logprob, found = token_scores(logits, torch.zeros(COUNT, dtype=torch.int64), temperature=1.0, entropy="value")
    assert logprob.dtype == found.dtype == torch.float32
    assert not found.requires_grad
    logprob.sum().backward()
    wanted = torch.autograd.grad(logits.float().log_softmax(-1)[:, 0].sum(), logits)[0]
    assert logits.grad.dtype == torch.bfloat16
    assert_close(logits.grad, wanted)


def test_logits_that_are_not_finite_are_told():
    logits = torch.randn(2, VOCABULARY)
    logits[0, 5] = torch.nan
    logprob, _ = token_scores(logits, torch.tensor([0, 0]), temperature=1.0, entropy="none")
    assert logprob.isfinite().tolist() == [False, True]
