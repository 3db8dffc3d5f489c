"""Drawing tokens: right frequencies, right log-probabilities, no dependence between rows, and honest margins."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engines.embedded.draw import draw, gumbel, row_keys
from agentrl.engines.embedded.kv_cache import common_prefix

N = 20_000


def keys(count: int, seed: int = 5) -> torch.Tensor:
    """Those of the first draws of a seed."""
    return torch.from_numpy(row_keys(np.full(count, seed, np.uint64), np.arange(count, dtype=np.uint64)))


def rows(logits: list[float], temperature: float, top_p: float | None = None) -> tuple[np.ndarray, torch.Tensor]:
    """`N` draws from one distribution: observed frequencies, and the log-probability given for each token."""
    nucleus = None if top_p is None else torch.full((N,), top_p)
    scales = None if temperature == 1 else torch.full((N,), temperature)
    tokens, logprobs, _ = draw(torch.tensor(logits).expand(N, -1), keys(N), temperature=scales, top_p=nucleus)
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


@pytest.mark.slow
@pytest.mark.parametrize("vocabulary", [97, 600, 2100])
@pytest.mark.parametrize("entropy", [0.5, 2.0, 6.0])
def test_draws_pass_a_chi_square_test(vocabulary: int, entropy: float) -> None:
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * 3
    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        probabilities = (logits / middle).softmax(-1).double()
        cooler = -(probabilities * probabilities.log().nan_to_num(neginf=0.0)).sum() < entropy
        low, high = (middle, high) if cooler else (low, middle)
    draws, counts = 100_000, np.zeros(vocabulary)
    shape = (logits / middle).expand(2000, -1)
    for seed in range(draws // 2000):
        counts += np.bincount(draw(shape, keys(2000, seed)).tokens.numpy(), minlength=vocabulary)
    expected = probabilities.numpy() * draws
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    score = ((observed - wanted) ** 2 / wanted).sum()
    # Wilson, Hilferty 1931: the cube root of a chi-square over its freedom is normal.
    normal = ((score / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert abs(normal) < 4


def test_top_p_keeps_the_smallest_nucleus_and_renormalises() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    for top_p, kept in (
        (0.0, [1.0, 0, 0, 0]),
        (0.45, [1.0, 0, 0, 0]),
        (0.6, [5 / 8, 3 / 8, 0, 0]),
        (0.9, [10 / 19, 6 / 19, 3 / 19, 0]),
    ):
        observed, logprobs = rows(logits, 1.0, top_p)
        assert np.abs(observed - kept).max() < 0.015
        torch.testing.assert_close(logprobs.exp(), torch.tensor(kept))


def test_rows_with_their_own_settings() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]] * 60)
    third = torch.arange(60) % 3
    tokens, logprobs, _ = draw(
        logits,
        keys(60),
        top_p=torch.where(third == 1, 0.1, 1.0),
        greedy=third == 0,
    )
    assert set(tokens[third < 2].tolist()) == {1}
    assert set(tokens[third == 2].tolist()) == {0, 1, 2}
    full = logits[0].log_softmax(-1)
    torch.testing.assert_close(logprobs[third == 0], full[1].expand(20))
    torch.testing.assert_close(logprobs[third == 1], torch.zeros(20))
    torch.testing.assert_close(logprobs[third == 2], full[tokens[third == 2]])


def test_what_another_row_asks_for_changes_no_bit() -> None:
    logits = torch.randn(3, 600, generator=torch.Generator().manual_seed(0)) * 2
    plain = draw(logits, keys(3))
    asked = {
        "temperature": torch.tensor([1.0, 0.7, 1.3]),
        "top_p": torch.tensor([1.0, 0.5, 1.0]),
        "greedy": torch.tensor([False, False, True]),
    }
    for name, value in asked.items():
        for left, right in zip(plain, draw(logits, keys(3), **{name: value}), strict=True):
            assert torch.equal(left[0], right[0])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 1200), st.integers(0, 2**32))
def test_log_probabilities_of_large_and_small_vocabularies(vocabulary: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn((8, vocabulary), generator=generator) * 4
    logits[:, torch.rand(vocabulary, generator=generator) < 0.3] = -torch.inf
    logits[:, seed % vocabulary] = 1.0
    greedy = torch.arange(8) % 2 == 0
    tokens, logprobs, margins = draw(logits, keys(8, seed), greedy=greedy)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])
    assert torch.equal(tokens[greedy], logits[greedy].argmax(-1))
    assert bool((margins >= 0).all())


def test_logits_that_change_by_less_than_the_margin_allows_change_no_draw() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((2000, 700), generator=generator) * 3
    asked = {"temperature": torch.rand(2000, generator=generator) + 0.5, "greedy": torch.arange(2000) % 4 == 0}
    asked["temperature"][asked["greedy"]] = 1.0
    tokens, _, margins = draw(logits, keys(2000), **asked)
    reach = margins * logits.amax(-1).clamp(min=1) / 2
    for share, stays in ((0.98, True), (40.0, False)):
        noise = torch.randint(0, 2, logits.shape, generator=generator) * 2 - 1
        noise[torch.arange(2000), tokens] = -1
        moved = draw(logits + noise * reach[:, None] * share, keys(2000), **asked).tokens
        assert torch.equal(moved, tokens) == stays
    # How rarely draws are close, which is what making them again rests on.
    assert (margins < 1e-3).float().mean() < 2e-2


def test_weights_that_are_not_numbers_are_seen() -> None:
    logits = torch.zeros((2, 50))
    logits[0, 3], logits[1, 3] = torch.nan, torch.inf
    tokens, logprobs, _ = draw(logits, keys(2))
    assert bool(((tokens >= 0) & (tokens < 50)).all())
    assert not logprobs.isfinite().any()


def test_noise_is_gumbel_noise_and_rows_are_independent() -> None:
    seeds, counters = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200, dtype=np.uint64), indexing="ij")
    row = torch.from_numpy(row_keys(seeds.ravel(), counters.ravel()))
    assert len(row.unique()) == len(row)
    # Uniform, by the noise's distribution function.
    grid = (-(-gumbel(row, torch.tensor(0))).exp()).exp().view(200, 200).numpy()
    assert np.abs(np.histogram(grid, 20, (0, 1))[0] / grid.size - 0.05).max() < 0.005
    correlation = np.corrcoef(grid) - np.eye(200)
    assert np.abs(correlation).max() < 0.35  # 5 standard deviations
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
    # Neither do the noises of one row follow from each other, pieces (below 0) and tokens.
    noise = gumbel(row[:4000, None], torch.arange(-50, 50)).numpy()
    assert abs(noise.mean() - np.euler_gamma) < 0.01
    assert abs(noise.std() - math.pi / math.sqrt(6)) < 0.01
    assert np.abs(np.corrcoef(noise.T) - np.eye(100)).max() < 0.08


def test_noise_is_that_of_splitmix64() -> None:
    """The arithmetic of int64 wraps as that of uint64 does: the same noise on every device."""
    key, counter, mask = 0x9E3779B97F4A7C15, 12345, (1 << 64) - 1
    z = key + (counter + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    uniform = ((z ^ z >> 31) >> 12) * 2.0**-52 + 2.0**-53
    found = gumbel(torch.tensor(key - (1 << 64)), torch.tensor(counter))
    assert found.item() == pytest.approx(-math.log(-math.log(uniform)), abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    expected = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == expected
