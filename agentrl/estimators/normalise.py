"""The shared normaliser of group-relative estimators, with three settings that differ silently between published
codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from agentrl.estimators.arrays import Floats, Ints
from agentrl.estimators.table import Weighting
from agentrl.types.errors import CreditError
from agentrl.types.figures.sums import TOLERANCE

Std = Literal["sample", "population", "none"]
Singleton = Literal["zero", "raw", "error"]
Discount = Annotated[float, Field(ge=0, le=1)]


class Baseline(BaseModel):
    """Settings of an estimator that subtracts a baseline of the group.

    Attributes:
        weighting: the unit of the group's statistics: a trajectory, a turn (a trajectory of ten turns counts ten times,
            as in codes with one row per turn), or a token.
        singleton: the advantage of a group of one. `zero`: 0, because it lacks a baseline. `raw`: its score, as in most
            codes. `error`: refuse.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weighting: Weighting = "trajectory"
    singleton: Singleton = "zero"

    @property
    def needs_members(self) -> bool:
        """True if a group of one episode gets no signal."""
        return self.singleton != "raw"


class Normalisation(Baseline):
    """Settings of an estimator that also divides by the group's deviation.

    `singleton: raw` keeps the score of a group that is a single observation under `weighting`, as in verl: with
    `weighting: turn`, a trajectory of two turns is its own baseline.

    Attributes:
        std: divide by the sample deviation (Bessel's correction), by the population deviation, or not at all.
        eps: added to the deviation.
    """

    std: Std = "sample"
    eps: float = Field(1e-6, ge=0, allow_inf_nan=False)


def normalise(
    values: Floats,
    groups: Ints,
    weights: Floats | None = None,
    *,
    std: Std = "sample",
    singleton: Singleton = "zero",
    eps: float = 1e-6,
    floor: float = 0.0,
    members: Ints | None = None,
    names: Sequence[str] = (),
) -> Floats:
    """(x - mean) / (deviation + eps) within each group; 0 if all values of a group are equal.

    Args:
        values: [n].
        groups: [n], group index of each value.
        weights: [n], frequency of each value, default 1. The sample variance divides by their sum minus one, so that a
            value of weight 3 equals three equal values.
        floor: added to the variance, before the root.
        members: [n_groups], number of independent members of each group, if smaller than the number of values
            (several turns of one trajectory). Default: the number of values with a positive weight.
        names: the names of the groups, for the error.

    Raises:
        CreditError: `singleton` is `error` and a group has one member.
    """
    size = int(groups.max(initial=-1)) + 1
    weights = np.ones(len(values)) if weights is None else weights
    total = np.bincount(groups, weights, size)
    members = np.bincount(groups, weights > 0, size) if members is None else members[:size]
    alone = members <= 1
    if singleton == "error" and alone[groups].any():
        first = int(groups[np.argmax(alone[groups])])
        raise CreditError(
            f"group {names[first] if names else first!r} has one member and so no baseline",
            remedy="credit.singleton: zero (no signal) or raw (its own score)",
        )
    # One of the group's values is subtracted first, so that equal values give exactly zero.
    anchor = np.zeros(size)
    anchor[groups] = values
    shifted = values - anchor[groups]
    mean = np.bincount(groups, weights * shifted, size) / np.where(total > 0, total, 1)
    result = shifted - mean[groups]
    if std != "none":
        result = result / deviation(result, groups, weights, std=std, eps=eps, floor=floor)[groups]
    result = np.where((alone | (total <= 0))[groups], 0.0, result)
    if singleton == "raw":
        single = alone & np.isclose(total, 1)
        # Published codes use mean 0 and deviation 1 here, so the raw score is divided by 1 + eps.
        result = np.where(single[groups], values / (1 if std == "none" else 1 + eps), result)
    return result


def deviation(
    centred: Floats,
    groups: Ints,
    weights: Floats,
    *,
    std: Std,
    eps: float,
    floor: float = 0.0,
) -> Floats:
    """The divisor of `normalise`: deviation + eps of centred values [n_groups].

    Infinite for groups without variance, that of rounding apart; 1 if `std` is `none`.
    """
    total = np.bincount(groups, weights)
    if std == "none":
        return np.ones(len(total))
    freedom = total - 1 if std == "sample" else total
    variance = np.bincount(groups, weights * centred**2) / np.where(freedom > 0, freedom, 1)
    # Without variance, only values of weight 0 differ from the mean: they have no scale either.
    return np.where(variance > TOLERANCE**2, np.sqrt(variance + floor) + eps, np.inf)


def centre(
    values: Floats,
    groups: Ints,
    weights: Floats,
    *,
    singleton: Singleton = "zero",
    names: Sequence[str] = (),
) -> Floats:
    """x - mean within each group. Arguments as in `normalise`, but `raw` keeps the value of every group of one."""
    rule: Singleton = "zero" if singleton == "raw" else singleton
    result = normalise(values, groups, weights, std="none", singleton=rule, names=names)
    if singleton == "raw":
        result = np.where(np.bincount(groups)[groups] == 1, values, result)
    return result


def whiten(values: Floats, weights: Floats, *, std: Std, eps: float) -> Floats:
    """(x - mean) / sqrt(variance + eps) over the whole batch.

    This is verl's `masked_whiten`: `eps` is under the root.

    Args:
        values: [n].
        weights: [n], frequency of each value, as in `normalise`.
    """
    total = weights.sum()
    centred = values - ((weights * values).sum() / total if total > 0 else 0.0)
    if std == "none":
        return centred
    freedom = total - 1 if std == "sample" else total
    variance = (weights * centred**2).sum() / freedom if freedom > 0 else 0.0
    return centred / np.sqrt(variance + eps) if variance > TOLERANCE**2 or eps > 0 else centred
