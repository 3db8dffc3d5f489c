"""Drawing tokens: right frequencies, right log-probabilities, no dependence between rows."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engines.draw import draw, uniforms
from agentrl.engines.kv_cache import common_prefix

N = 20_000


def rows(logits: list[float], temperature: float, top_p: float | None = None) -> tuple[np.ndarray, torch.Tensor]:
    """`N` draws from one distribution: observed frequencies, and the log-probability given for each token."""
    u = torch.from_numpy(uniforms(np.full(N, 5, np.uint64), np.arange(N, dtype=np.uint64)))
    nucleus = None if top_p is None else torch.full((N,), top_p)
    scales = None if temperature == 1 else torch.full((N,), temperature)
    tokens, logprobs = draw(torch.tensor(logits).expand(N, -1), u, temperature=scales, top_p=nucleus)
    given = torch.full((len(logits),), -torch.inf)
    given[tokens] = logprobs
    return np.bincount(tokens.numpy(), minlength=len(logits)) / N, given


def test_frequencies_follow_the_distribution_at_the_temperature() -> None:
    logits = [0.0, 1.0, -1.0, 2.0, -torch.inf]
    for temperature in (0.5, 1.0, 2.0):
        expected = torch.softmax(torch.tensor(logits) / temperature, -1)
        observed, logprobs = rows(logits, temperature)
        assert np.abs(observed - expected.numpy()).max() < 0.015
        assert observed[4] == 0
        torch.testing.assert_close(logprobs.exp(), expected)


def test_top_p_keeps_the_smallest_nucleus_and_renormalises() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    for top_p, kept in ((0.45, [1.0, 0, 0, 0]), (0.6, [5 / 8, 3 / 8, 0, 0]), (0.9, [10 / 19, 6 / 19, 3 / 19, 0])):
        observed, logprobs = rows(logits, 1.0, top_p)
        assert np.abs(observed - kept).max() < 0.015
        torch.testing.assert_close(logprobs.exp(), torch.tensor(kept))


def test_rows_with_their_own_settings() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]] * 3)
    tokens, logprobs = draw(
        logits,
        torch.tensor([0.999, 0.999, 0.999]).double(),
        top_p=torch.tensor([1.0, 0.1, 1.0]),
        greedy=torch.tensor([True, False, False]),
    )
    assert tokens.tolist() == [1, 1, 2]
    full = logits[0].log_softmax(-1)
    torch.testing.assert_close(logprobs, torch.stack([full[1], torch.tensor(0.0), full[2]]))


def test_the_ends_of_the_unit_interval() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]] * 2)
    tokens, _ = draw(logits, torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64))
    assert tokens.tolist() == [1, 2]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 1200), st.integers(0, 2**32), st.floats(0, 1, exclude_max=True))
def test_a_large_vocabulary_is_inverted_as_a_small_one(vocabulary: int, seed: int, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((1, vocabulary), generator=generator) * 4
    logits[:, torch.rand(vocabulary, generator=generator) < 0.3] = -torch.inf
    logits[:, seed % vocabulary] = 1.0
    (token,), _ = draw(logits, torch.tensor([share], dtype=torch.float64))
    cumulative = logits.log_softmax(-1).exp()[0].cumsum(0, dtype=torch.float64)
    target = share * cumulative[-1]
    assert logits[0, token] > -torch.inf
    assert cumulative[token] > target - 1e-12
    assert token == 0 or cumulative[token - 1] <= target + 1e-12


def test_uniforms_are_uniform_and_rows_are_independent() -> None:
    seeds, counters = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.uint64), indexing="ij")
    grid = uniforms(seeds.ravel(), counters.ravel()).reshape(200, 200)
    assert grid.min() >= 0
    assert grid.max() < 1
    assert np.abs(np.histogram(grid, 20, (0, 1))[0] / grid.size - 0.05).max() < 0.005
    correlation = np.corrcoef(grid) - np.eye(200)
    assert np.abs(correlation).max() < 0.35  # 5 standard deviations
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
    assert len(np.unique(grid)) == grid.size


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    expected = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == expected
