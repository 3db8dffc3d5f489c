"""The canary: after every update a few log-probabilities of the engine are compared with the trainer's.

If an update does not reach the engine, the engine keeps an older policy, whose replies still look plausible. The canary
detects this: since the last version that is known to have arrived, the trainer's log-probabilities have moved, and the
engine's have not. Let a be the engine's move and b the trainer's. <a, b> / <b, b> is about 1 for weights that arrived
and about 0 for weights that did not, whatever constant gap precision leaves between the two. This is evidence only if b
is large compared with that gap. Until then the canary compares with the older version, so that small steps add up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from agentrl.config.recipe import TrainingRecipe
from agentrl.training.backend import Floats, TrainerBackend
from agentrl.types.engine import Engine, score
from agentrl.types.errors import TrainError
from agentrl.types.sample import TrainingSample

ROWS, TOKENS = 4, 12
"""Number of prompts, and of their tokens; all tokens but the first are compared."""

STANDS_OUT = 4.0
"""A move is evidence if its root mean square is at least this multiple of the gap's."""

LOADED = "the model as it was loaded"

ARRIVED = 0.5
"""Minimum share of the trainer's move that the engine must show."""


@dataclass(frozen=True)
class Precision:
    """Differences that rounding explains, in nats.

    Attributes:
        least: lower bound for the gap (root mean square).
        most: maximum difference of two engines with the same policy (mean of the absolute values).
    """

    least: float
    most: float


FLOAT32, HALF = Precision(1e-4, 0.2), Precision(1e-2, 0.5)


ROUNDED = "; merged in bfloat16, small steps of adapters are lost: model.dtype=float32, or servers that take adapters"
"""Additional remedy if adapters are merged into weights of half precision."""


class Known(NamedTuple):
    """The last confirmed version on the engine.

    Attributes:
        sampled, trained: log-probabilities of engine and trainer under it, [rows, TOKENS - 1].
        noise: the gap between the two, in nats (root mean square).
    """

    name: str
    sampled: Floats
    trained: Floats
    noise: float


class WeightsLost(TrainError):
    """The engine does not sample from the trainer's policy."""


class Canary:
    """Compares an engine with a trainer, version by version.

    Args:
        prompts: token ids of some of the recipe's prompts. The first few are used, without their common suffix (the
            chat template's text, which is little evidence about a policy).
        longest: maximum number of tokens that the engine takes.
        precision: the lower precision of the two.
        hint: an additional remedy for the way in which weights are sent, or "".

    Attributes:
        metrics: metrics of the last comparison.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], longest: int, precision: Precision, hint: str = "") -> None:
        self.metrics: dict[str, float] = {}
        self._precision, self._hint = precision, hint
        own = [prompt for prompt in _own_parts(prompts[:ROWS]) if len(prompt) > 1]
        # All rows begin with the same token, so that an engine can score them in one batch.
        self._rows = [_row([own[0][0], *prompt[1:][-min(TOKENS, longest - 1) + 1 :]]) for prompt in own]
        nothing = np.zeros((len(self._rows), TOKENS - 1), np.float32)
        self._known = Known("", nothing, nothing, 0.0)

    async def trained(self, trainer: TrainerBackend) -> Floats:
        """The trainer's log-probabilities, [rows, TOKENS - 1]; NaN where a prompt is too short."""
        found = await trainer.logprobs(self._rows)
        return _filled([values[row.loss_mask] for values, row in zip(found, self._rows, strict=True)])

    async def sampled(self, engine: Engine) -> Floats:
        """The engine's log-probabilities of the same tokens."""
        ids = [row.token_ids.tolist() for row in self._rows]
        if engine.spreads_scores:
            asked = (score(engine, row, [[token] for token in row[1:]], range(1, len(row))) for row in ids)
            return _filled([np.concatenate(said) for said in await asyncio.gather(*asked)])
        said = await score(engine, ids[0][:1], [row[1:] for row in ids]) if ids else []
        return _filled([np.array(each, np.float32) for each in said])

    def begin(self, trained: Floats) -> None:
        """Starts with the loaded model, which trainer and engine share before any update. The gap between the two is
        not measured yet; a larger value than expected is assumed."""
        self._known = Known(LOADED, trained, trained, 5 * self._precision.least)

    def check(self, version: int, sampled: Floats, trained: Floats) -> None:
        """Compares the log-probabilities of both under a version.

        Raises:
            WeightsLost: the engine has other weights: the difference is larger than precision explains.
        """
        gap = sampled - trained
        moved, followed = trained - self._known.trained, sampled - self._known.sampled
        self.metrics = {"canary_gap": _mean(np.abs(gap)), "canary_moved": _rms(moved)}
        # Row by row: only one of several servers may have missed the update.
        evident = [k for k in range(len(gap)) if _rms(moved[k]) > STANDS_OUT * self._known.noise]
        shares = [_share(followed[k], moved[k]) for k in evident]
        if evident:
            self.metrics["canary_arrived"] = _share(followed[evident], moved[evident])
        if any(share < ARRIVED for share in shares):
            raise WeightsLost(
                f"the weights of version {version} did not reach the engine: since {self._known.name} the trainer's "
                f"log-probabilities moved by {self.metrics['canary_moved']:.2g} nats, and the engine's by "
                f"{min(shares):.0%} of that; they now differ by {self.metrics['canary_gap']:.2g}",
                place="train.canary",
                remedy="the same command resumes from the last checkpoint and sends the weights again; see also the "
                f"log of the engine or its servers{self._hint}",
            )
        if self.metrics["canary_gap"] > self._precision.most:
            raise WeightsLost(
                f"the engine has other weights than version {version} of the trainer: their log-probabilities differ "
                f"by {self.metrics['canary_gap']:.2g} nats, and precision explains {self._precision.most:g}",
                place="train.canary",
                remedy="engine.urls and model.path must name the same model, in model.dtype; train.canary=false turns "
                "this check off",
            )
        if evident or self._known.name == LOADED:
            self._known = Known(f"version {version}", sampled, trained, max(self._precision.least, _rms(gap)))


def canary_of(recipe: TrainingRecipe, prompts: Sequence[Sequence[int]], longest: int) -> Canary:
    """The canary of a training. Arguments as for `Canary`."""
    model, train = recipe.model, recipe.train
    half = "bfloat16" in (model.dtype, train.precision)
    rounded = train.lora is not None and model.dtype == "bfloat16"
    return Canary(prompts, longest, HALF if half else FLOAT32, ROUNDED if rounded else "")


def _own_parts(prompts: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """The prompts without their common suffix; unchanged if nothing would be left to compare."""
    backwards = zip(*(prompt[::-1] for prompt in prompts), strict=False)
    common = next((k for k, tokens in enumerate(backwards) if len(set(tokens)) > 1), 0)
    own = [prompt[: len(prompt) - common] for prompt in prompts]
    return own if all(len(part) > 1 for part in own) else prompts


def _row(ids: list[int]) -> TrainingSample:
    nothing = np.zeros(len(ids), np.float32)
    return TrainingSample(np.array(ids, np.int64), np.arange(len(ids)) > 0, nothing, nothing, "canary", "canary", 0)


def _filled(rows: Sequence[Floats]) -> Floats:
    out = np.full((len(rows), TOKENS - 1), np.nan, np.float32)
    for k, row in enumerate(rows):
        out[k, : len(row)] = row
    return out


def _share(followed: Floats, moved: Floats) -> float:
    both = np.isfinite(followed) & np.isfinite(moved)
    return float((followed[both] * moved[both]).sum() / (moved[both] ** 2).sum())


def _rms(values: Floats) -> float:
    return float(_mean(values**2) ** 0.5)


def _mean(values: Floats) -> float:
    """Mean of the finite values; 0 without any."""
    found = values[np.isfinite(values)]
    return float(found.mean()) if found.size else 0.0
