"""The normaliser that all group-relative estimators share, with the three switches that published codes set
differently without saying so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from agentrl.credit.arrays import Floats, Ints
from agentrl.credit.table import Weighting
from agentrl.types.errors import CreditError

Std = Literal["sample", "population", "none"]
Singleton = Literal["zero", "raw", "error"]
Discount = Annotated[float, Field(ge=0, le=1)]


class Baseline(BaseModel):
    """Settings of an estimator that subtracts a baseline of the group.

    Attributes:
        weighting: what counts once in the group's statistics: a trajectory, a turn (a trajectory of ten turns counts
            ten times; what codes with one row per turn do), or a token.
        singleton: what a group of one gets. `zero`: nothing, it has no baseline. `raw`: its score, as most codes give.
            `error`: refuse.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weighting: Weighting = "trajectory"
    singleton: Singleton = "zero"

    @property
    def needs_members(self) -> bool:
        """Whether a group of one episode teaches nothing."""
        return self.singleton != "raw"


class Normalisation(Baseline):
    """Settings of an estimator that also divides by the group's deviation.

    `singleton: raw` keeps the score where the group is a single observation under `weighting`, as verl does: a
    trajectory of two turns that are weighted one by one is its own baseline.

    Attributes:
        std: divide by the deviation with Bessel's correction, by that of the population, or not at all.
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
    """(x - mean) / (deviation + eps) inside each group; 0 where all values of a group are equal.

    Args:
        values: [n].
        groups: [n], group index of each value.
        weights: [n], how often each value counts, 1 by default. Frequencies: the sample variance divides by their
            sum minus one, so that a value of weight 3 is the same as three equal values.
        floor: added to the variance, before the root.
        members: [n_groups], independent members of each group, where they are fewer than the values (several turns of
            one trajectory). By default the number of values with a positive weight.
        names: of the groups, for the message.

    Raises:
        CreditError: `singleton` is `error` and some group has one member.
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
    # Deviations are taken from one of the group's own values first: equal values then give exactly zero.
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
        # Published codes take mean 0 and deviation 1 here, so the raw score is divided by 1 + eps.
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
    """What `normalise` divides by: deviation + eps of values that are centred already [n_groups].

    Infinite where the values do not differ; 1 everywhere if `std` is `none`.
    """
    total = np.bincount(groups, weights)
    if std == "none":
        return np.ones(len(total))
    freedom = total - 1 if std == "sample" else total
    variance = np.bincount(groups, weights * centred**2) / np.where(freedom > 0, freedom, 1)
    # Only a value without weight can differ from a mean that has no variance: it has no scale either.
    return np.where(variance > 0, np.sqrt(variance + floor) + eps, np.inf)


def centre(
    values: Floats,
    groups: Ints,
    weights: Floats,
    *,
    singleton: Singleton = "zero",
    names: Sequence[str] = (),
) -> Floats:
    """x - mean inside each group. Arguments as in `normalise`, but `raw` keeps the value of every group of one."""
    rule: Singleton = "zero" if singleton == "raw" else singleton
    result = normalise(values, groups, weights, std="none", singleton=rule, names=names)
    if singleton == "raw":
        result = np.where(np.bincount(groups)[groups] == 1, values, result)
    return result


def whiten(values: Floats, weights: Floats, *, std: Std, eps: float) -> Floats:
    """(x - mean) / sqrt(variance + eps) over the whole batch.

    verl's `masked_whiten`: the trainer's rows may weigh by tokens, and `eps` stands under the root.

    Args:
        values: [n].
        weights: [n], how often each value counts, as in `normalise`.
    """
    total = weights.sum()
    centred = values - ((weights * values).sum() / total if total > 0 else 0.0)
    if std == "none":
        return centred
    freedom = total - 1 if std == "sample" else total
    variance = (weights * centred**2).sum() / freedom if freedom > 0 else 0.0
    scale = np.sqrt(variance + eps)
    return centred / scale if scale > 0 else centred
