"""Estimators by name, and the `credit` section of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from agentrl.config.credit import CreditSettings
from agentrl.credit.estimator import Advantages, Estimator, Need, Reward, estimator
from agentrl.credit.estimators.outcome.baselines import asymre, gpg, opmd, opo, rloo
from agentrl.credit.estimators.outcome.bnpo import bnpo
from agentrl.credit.estimators.outcome.canon import canon
from agentrl.credit.estimators.outcome.copo import copo
from agentrl.credit.estimators.outcome.entropy import high_entropy
from agentrl.credit.estimators.outcome.grpo import dr_grpo, grpo
from agentrl.credit.estimators.outcome.pass_at_k import pass_at_k
from agentrl.credit.estimators.outcome.pref_grpo import pref_grpo
from agentrl.credit.estimators.outcome.reinforce import nsr, reinforce_pp, reinforce_pp_baseline, w_reinforce
from agentrl.credit.estimators.outcome.riskpo import riskpo
from agentrl.credit.estimators.outcome.unlikeliness import unlikeliness
from agentrl.credit.estimators.turn.capo import capo
from agentrl.credit.estimators.turn.gae import bi_level_gae, gae, turn_gae
from agentrl.credit.estimators.turn.gigpo import gigpo
from agentrl.credit.estimators.turn.igpo import igpo
from agentrl.credit.estimators.turn.implicit_prm import implicit_prm
from agentrl.credit.estimators.turn.mt_grpo import mt_grpo
from agentrl.credit.estimators.turn.process import ppr, spa
from agentrl.credit.estimators.turn.returns import returns
from agentrl.credit.estimators.turn.roles import mars, role_grpo
from agentrl.credit.estimators.turn.salt import salt
from agentrl.credit.estimators.turn.step_grpo import flow_grpo, step_grpo
from agentrl.credit.estimators.turn.tempo import tempo
from agentrl.credit.estimators.turn.treepo import treepo
from agentrl.credit.table import CreditTable, immediate
from agentrl.registry.references import is_reference, load_object
from agentrl.types.episode import Episode
from agentrl.types.errors import CreditError, nearest

_TRAJECTORY = (
    *(grpo, dr_grpo, rloo, opo, gpg, asymre, opmd, bnpo, pass_at_k, canon, riskpo, copo, unlikeliness, pref_grpo),
    *(reinforce_pp_baseline, w_reinforce, nsr, treepo, flow_grpo),
)
_TURN = (returns, gigpo, igpo, salt, mt_grpo, step_grpo, role_grpo, turn_gae)
_TOKEN = (reinforce_pp, gae, bi_level_gae, mars, ppr, spa, tempo, capo, implicit_prm, high_entropy)

Place = Literal["tokens", "turns", "outcome"]
PLACES: tuple[Place, ...] = ("tokens", "turns", "outcome")
"""Rewards that a penalty of tokens can go into, the finest first."""

BUILT_IN: dict[str, Estimator] = {built_in.name: built_in for built_in in (*_TRAJECTORY, *_TURN, *_TOKEN)}


def find_estimator(what: str | Callable[..., Any], base: Path = Path()) -> Estimator:
    """The estimator of a name, a reference to user code, or a function.

    Args:
        what: a built-in name; `pkg.module:function` or `./task.py:function`; an estimator or a plain function.
        base: folder that `./task.py` is relative to.

    Raises:
        CreditError: no built-in of that name, or the object is no estimator.
        RecipeError: the reference cannot be loaded.
    """
    if isinstance(what, str) and not is_reference(what):
        if what not in BUILT_IN:
            raise CreditError(
                f"there is no estimator {what!r}",
                place="credit.estimator",
                remedy=nearest(what, sorted(BUILT_IN), "allowed"),
            )
        return BUILT_IN[what]
    loaded = load_object(what, base) if isinstance(what, str) else what
    if isinstance(loaded, Estimator):
        return loaded
    if not callable(loaded):
        raise CreditError(f"{what!r} is a {type(loaded).__name__}, not a function", place="credit.estimator")
    return estimator()(loaded)


class EpisodeCredit(msgspec.Struct, frozen=True, kw_only=True):
    """Credit of one episode, as the estimator gave it.

    Attributes:
        turns: one advantage per turn.
        parts: summands of `turns` by name.
        tokens: one advantage per sampled token, turn after turn, where the estimator tells tokens apart.
        value_targets: what a critic should say of each sampled token; None where it is not asked.
    """

    episode_id: str
    estimator: str
    turns: list[float]
    parts: dict[str, list[float]] = {}
    tokens: list[float] | None = None
    value_targets: list[float | None] | None = None


@dataclass(frozen=True)
class CreditAssigner:
    """An estimator with its settings: episodes in, credit out."""

    estimator: Estimator
    settings: BaseModel

    def __call__(self, table: CreditTable) -> Advantages:
        return self.estimator(table, self.settings)

    @property
    def needs(self) -> list[Need]:
        """The columns that must hold something under these settings."""
        return self.estimator.needed(self.settings)

    @property
    def reads(self) -> frozenset[Reward] | None:
        """The rewards that it reads under these settings; None for user code that does not say."""
        return None if self.estimator.reads is None else frozenset(self.estimator.reads(self.settings))

    def passes_over(self, episodes: Iterable[Episode]) -> bool:
        """Whether turns of these episodes were rewarded, and it does not read that."""
        reads_turns = self.reads is None or self.reads & {"turns", "first_turn"}
        return not reads_turns and any(immediate(turn) for episode in episodes for turn in episode.turns)

    def penalty_place(self) -> Place:
        """Into which reward a penalty (KL) goes, so that it counts: the finest that the estimator reads.

        Raises:
            CreditError: it reads none that something can be subtracted from, or does not say what it reads.
        """
        reads, name = self.reads, self.estimator.name
        if reads is None:
            raise CreditError(
                f"{name} does not say which rewards it reads, so that KL in the reward might be without effect",
                place="train.kl.place",
                remedy="@estimator(reads=['outcome', 'turns']) on the function (from agentrl.credit import estimator), "
                "or train.kl: {place: loss}",
            )
        places = PLACES[:1] if "verdict" in reads else PLACES
        for place in places:
            if place in reads:
                return place
        why = "takes the outcome for right or wrong" if "verdict" in reads else "reads no reward"
        raise CreditError(
            f"{name} {why}: KL in the reward would be without effect, or spoil it",
            place="train.kl.place",
            remedy="train.kl: {place: loss}, or credit that reads a reward (grpo, gigpo, reinforce_pp)",
        )

    @property
    def needs_members(self) -> bool:
        """Whether a group of one episode teaches nothing, or only where the episode itself repeats."""
        return bool(getattr(self.settings, "needs_members", False))

    def assign(
        self,
        episodes: Iterable[Episode],
        columns: Mapping[str, Mapping[str, NDArray[Any]]] | None = None,
        progress: float = 0.0,
    ) -> tuple[list[EpisodeCredit], dict[str, float]]:
        """Credit of every scored episode, in order, and metrics of the batch.

        Episodes that were never scored are in no baseline and get no credit.

        Args:
            columns: what the episodes themselves do not hold, by the column's name and the episode's id.
            progress: share of the training that is done, 0 to 1.

        Raises:
            CreditError: the estimator cannot work with these episodes.
        """
        table = CreditTable.from_episodes(episodes)
        joined = {
            name: np.concatenate([by_episode[id] for id in table.episode_ids if id in by_episode] or [np.zeros(0)])
            for name, by_episode in (columns or {}).items()
        }
        table = replace(table.with_columns(**joined), progress_of_training=progress)
        advantages = self(table)
        return split_by_episode(table, advantages, self.estimator.name), {**table.metrics(), **advantages.metrics}


def split_by_episode(table: CreditTable, advantages: Advantages, name: str) -> list[EpisodeCredit]:
    """Cuts the columns at the episodes' borders."""
    turns = advantages.turn.tolist()
    parts = {part: column.tolist() for part, column in advantages.parts.items()}
    tokens = None if advantages.token is None else advantages.token.tolist()
    targets = None
    if advantages.value_target is not None:
        targets = [value if np.isfinite(value) else None for value in advantages.value_target.tolist()]
    turn_borders = pairwise(table.offsets.tolist())
    token_borders = pairwise(table.token_offsets[table.offsets].tolist())
    return [
        EpisodeCredit(
            episode_id=episode_id,
            estimator=name,
            turns=turns[start:end],
            parts={part: column[start:end] for part, column in parts.items()},
            tokens=None if tokens is None else tokens[slice(*span)],
            value_targets=None if targets is None else targets[slice(*span)],
        )
        for episode_id, (start, end), span in zip(table.episode_ids, turn_borders, token_borders, strict=True)
    ]


def load_credit(settings: CreditSettings, base: Path = Path()) -> CreditAssigner:
    """Finds the estimator and checks its settings.

    Raises:
        CreditError: no such estimator, no such setting, or a value that does not fit.
        RecipeError: the estimator is a reference that cannot be loaded.
    """
    chosen = find_estimator(settings.estimator, base)
    try:
        own = chosen.settings.model_validate(settings.model_extra or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        place = f"credit.{key}" if key else "credit"
        if first["type"] == "extra_forbidden":
            raise CreditError(
                f"estimator {chosen.name!r} has no setting {key!r}",
                place=place,
                remedy=nearest(key, sorted(chosen.settings.model_fields), "allowed"),
            ) from None
        found = "" if first["type"] == "missing" else f", found {first['input']!r}"
        raise CreditError(f"{first['msg'][:1].lower()}{first['msg'][1:]}{found}", place=place) from None
    return CreditAssigner(chosen, own)
