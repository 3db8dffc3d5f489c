"""Agreement of credit with measured worth: rank correlation, its interval by bootstrap over episodes, its ceiling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 1000
"""Bootstrap samples of an interval."""

LEVEL = 0.95
"""Coverage of intervals."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class MeasuredTurn:
    """Worth of a turn, measured by resumed episodes without the credited one.

    Attributes:
        worth: value after the turn minus value before it; after the last turn, the value is the episode's reward.
        error: its standard error.
        halves: the same from either half of the resumed episodes.
        last: whether the episode ended with it, so that its worth holds the reward that the episode really got.
    """

    episode: str
    turn: int
    worth: float
    error: float
    halves: tuple[float, float]
    last: bool


@dataclass(frozen=True)
class Agreement:
    """An estimator's credit compared with the worth of turns.

    Attributes:
        spearman: rank correlation over the turns; equal values share their mean rank.
        interval: of `spearman`, 95 %, by bootstrap over episodes; None of a single episode.
        inner: rank correlation without the last turns of episodes, whose worth holds the reward that credit reads,
            too; None if no two turns are left.
        sign: share of equal signs where the worth is above its standard error; None of no such turn.
        behind: whether another estimator is better, of the same episodes, in 97.5 % of the bootstrap samples.
    """

    spearman: float
    interval: Interval | None
    inner: float | None
    sign: float | None
    behind: bool


def agreements(turns: Sequence[MeasuredTurn], credits: Mapping[str, ArrayLike]) -> dict[str, Agreement]:
    """Compares estimators over the same turns, the best first.

    Args:
        credits: advantages of the turns by estimator, in their order.
    """
    worth = np.array([turn.worth for turn in turns])
    columns = {name: np.asarray(given, np.float64) for name, given in credits.items()}
    samples = resampled([turn.episode for turn in turns])
    of_worth = [ranks(worth[at]) for at in samples]  # once for all estimators: ranks take the time
    drawn = {
        name: np.array([_correlation(ranks(given[at]), rank) for at, rank in zip(samples, of_worth, strict=True)])
        for name, given in columns.items()
    }
    inner = np.array([not turn.last for turn in turns], np.bool_)
    sure = np.array([abs(turn.worth) > turn.error for turn in turns], np.bool_)
    found = {
        name: Agreement(
            spearman=spearman(given, worth),
            interval=interval(drawn[name]),
            inner=spearman(given[inner], worth[inner]) if inner.sum() > 1 else None,
            sign=float(np.mean(np.sign(given[sure]) == np.sign(worth[sure]))) if sure.any() else None,
            behind=any(_ahead(drawn[other], drawn[name]) for other in columns if other != name),
        )
        for name, given in columns.items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1].spearman))


def resampled(episodes: Sequence[str], samples: int = RESAMPLES) -> list[NDArray[np.int64]]:
    """Draws episodes with replacement; returns the indices of the turns of each sample. None of a single episode.

    Args:
        episodes: id of the episode of each turn.
    """
    names = sorted(set(episodes))
    of = {name: np.flatnonzero(np.array([each == name for each in episodes])) for name in names}
    if len(names) < 2:
        return []
    rng = np.random.default_rng(0)
    return [np.concatenate([of[names[k]] for k in rng.integers(len(names), size=len(names))]) for _ in range(samples)]


def interval(drawn: NDArray[np.float64]) -> Interval | None:
    """Percentiles of the bootstrap samples of a figure; None without samples."""
    if not len(drawn):
        return None
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _ahead(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return bool(len(one)) and float(np.mean(one > other)) >= (1 + LEVEL) / 2


def ceiling(turns: Sequence[MeasuredTurn]) -> float:
    """The correlation that a perfect estimator could reach with so few resumptions: one half of the resumed episodes
    against the other, extended to all of them (Spearman-Brown).
    """
    first, second = (np.array([turn.halves[k] for turn in turns]) for k in (0, 1))
    half = spearman(first, second)
    return math.sqrt(2 * half / (1 + half)) if half > 0 else 0.0


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation; equal values share their mean rank. 0 if one of them is constant."""
    return _correlation(ranks(a), ranks(b))


def _correlation(x: NDArray[Any], y: NDArray[Any]) -> float:
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / size if size else 0.0


def ranks(values: ArrayLike) -> NDArray[Any]:
    """Ranks of values; equal ones share their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: NDArray[Any] = (ends - (counts - 1) / 2)[inverse]
    return found
