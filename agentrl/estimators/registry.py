"""Estimators by name, and the `credit` section of a recipe."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from agentrl.config.credit import CreditSettings
from agentrl.estimators.estimator import Advantages, Estimator, Need, Reward, estimator
from agentrl.estimators.parted import parted
from agentrl.estimators.state_values import CountedStates, StateValues, shared_states
from agentrl.estimators.table import CreditTable
from agentrl.registry.registry import Registry, any_function
from agentrl.types.episode import Episode
from agentrl.types.errors import CreditError
from agentrl.types.figures.of_episodes import immediate

Place = Literal["tokens", "turns", "outcome"]
PLACES: tuple[Place, ...] = ("tokens", "turns", "outcome")
"""Rewards that can contain a penalty of tokens, finest first."""


def _estimator(found: Any) -> Estimator | None:
    """Makes an estimator of an estimator or a plain function."""
    if isinstance(found, Estimator):
        return found
    return estimator()(found) if any_function(found) is not None else None


def _about(found: Estimator) -> dict[str, Any]:
    return {
        "does": " ".join((inspect.getdoc(found.function) or "").split("\n\n")[0].split()),
        "granularity": found.granularity,
        "needs": sorted(found.needs),
        "reads": sorted(found.reads(found.settings())) if found.reads is not None else None,
        "certainty": found.certainty,
        "origin": found.source,
    }


ESTIMATORS: Registry[Estimator] = Registry(
    kind="estimator",
    group="estimators",
    key="credit",
    built_in={
        "grpo": "agentrl.estimators.outcome.grpo:grpo",
        "dr_grpo": "agentrl.estimators.outcome.grpo:dr_grpo",
        "lite_ppo": "agentrl.estimators.outcome.grpo:lite_ppo",
        "grpo_lambda": "agentrl.estimators.outcome.grpo_lambda:grpo_lambda",
        "rloo": "agentrl.estimators.outcome.baselines:rloo",
        "opo": "agentrl.estimators.outcome.baselines:opo",
        "gpg": "agentrl.estimators.outcome.baselines:gpg",
        "asymre": "agentrl.estimators.outcome.baselines:asymre",
        "opmd": "agentrl.estimators.outcome.baselines:opmd",
        "bnpo": "agentrl.estimators.outcome.bnpo:bnpo",
        "pass_at_k": "agentrl.estimators.outcome.pass_at_k:pass_at_k",
        "canon": "agentrl.estimators.outcome.canon:canon",
        "riskpo": "agentrl.estimators.outcome.riskpo:riskpo",
        "copo": "agentrl.estimators.outcome.copo:copo",
        "unlikeliness": "agentrl.estimators.outcome.unlikeliness:unlikeliness",
        "grpo_care": "agentrl.estimators.outcome.grpo_care:grpo_care",
        "pref_grpo": "agentrl.estimators.outcome.pref_grpo:pref_grpo",
        "reinforce_pp_baseline": "agentrl.estimators.outcome.reinforce:reinforce_pp_baseline",
        "w_reinforce": "agentrl.estimators.outcome.reinforce:w_reinforce",
        "nsr": "agentrl.estimators.outcome.reinforce:nsr",
        "carl": "agentrl.estimators.turn.carl:carl",
        "treepo": "agentrl.estimators.turn.treepo:treepo",
        "flow_grpo": "agentrl.estimators.turn.step_grpo:flow_grpo",
        "returns": "agentrl.estimators.turn.returns:returns",
        "gigpo": "agentrl.estimators.turn.gigpo:gigpo",
        "gagpo": "agentrl.estimators.turn.gagpo:gagpo",
        "rtmc": "agentrl.estimators.turn.rtmc:rtmc",
        "c3": "agentrl.estimators.turn.c3:c3",
        "draco": "agentrl.estimators.turn.draco:draco",
        "hcapo": "agentrl.estimators.turn.hcapo:hcapo",
        "igpo": "agentrl.estimators.turn.igpo:igpo",
        "a2tgpo": "agentrl.estimators.turn.a2tgpo:a2tgpo",
        "salt": "agentrl.estimators.turn.salt:salt",
        "mt_grpo": "agentrl.estimators.turn.mt_grpo:mt_grpo",
        "step_grpo": "agentrl.estimators.turn.step_grpo:step_grpo",
        "role_grpo": "agentrl.estimators.turn.roles:role_grpo",
        "turn_gae": "agentrl.estimators.turn.gae:turn_gae",
        "reinforce_pp": "agentrl.estimators.outcome.reinforce:reinforce_pp",
        "gae": "agentrl.estimators.turn.gae:gae",
        "bi_level_gae": "agentrl.estimators.turn.gae:bi_level_gae",
        "mars": "agentrl.estimators.turn.roles:mars",
        "ppr": "agentrl.estimators.turn.process:ppr",
        "spa": "agentrl.estimators.turn.process:spa",
        "tempo": "agentrl.estimators.turn.tempo:tempo",
        "grpo_process": "agentrl.estimators.turn.grpo_process:grpo_process",
        "rank_grpo": "agentrl.estimators.turn.rank_grpo:rank_grpo",
        "capo": "agentrl.estimators.turn.capo:capo",
        "sweet": "agentrl.estimators.turn.sweet:sweet",
        "implicit_prm": "agentrl.estimators.turn.implicit_prm:implicit_prm",
        "istar": "agentrl.estimators.turn.istar:istar",
        "spro": "agentrl.estimators.turn.spro:spro",
        "aem": "agentrl.estimators.turn.aem:aem",
        "a_lol": "agentrl.estimators.turn.a_lol:a_lol",
        "high_entropy": "agentrl.estimators.outcome.entropy:high_entropy",
    },
    wanted="a function of a credit table, mine(table) or mine(table, settings: MySettings)",
    accept=_estimator,
    declares=lambda found: found.declared,
    about=_about,
)


class EpisodeCredit(msgspec.Struct, frozen=True, kw_only=True):
    """The credit of one episode.

    Attributes:
        turn_advantages: one advantage per turn.
        parts: summands of `turn_advantages` by name.
        token_advantages: one advantage per sampled token, in order, if the estimator distinguishes tokens.
        value_targets: the critic's target at each sampled token; None without a critic.
        clip_scales: one factor of the loss's clip range per turn; None: 1 for all.
    """

    episode_id: str
    estimator: str
    turn_advantages: list[float]
    parts: dict[str, list[float]] = {}
    token_advantages: list[float] | None = None
    value_targets: list[float | None] | None = None
    clip_scales: list[float] | None = None


@dataclass(frozen=True)
class CreditAssigner:
    """An estimator with its settings: maps episodes to credit."""

    estimator: Estimator
    settings: BaseModel

    def __call__(self, table: CreditTable) -> Advantages:
        return self.estimator(table, self.settings)

    @property
    def needs(self) -> list[Need]:
        """The required columns under these settings."""
        return self.estimator.needed(self.settings)

    @property
    def reads(self) -> frozenset[Reward] | None:
        """Rewards read by the estimator under these settings; None if user code does not declare them."""
        return None if self.estimator.reads is None else frozenset(self.estimator.reads(self.settings))

    def passes_over(self, episodes: Iterable[Episode]) -> bool:
        """Returns True if turns of these episodes have rewards that the estimator does not read."""
        reads_turns = self.reads is None or self.reads & {"turns", "first_turn"}
        return not reads_turns and any(immediate(turn) for episode in episodes for turn in episode.own_turns)

    def penalty_place(self) -> Place:
        """Finest reward that the estimator reads: a penalty (KL) is subtracted from it.

        Raises:
            CreditError: the estimator reads none, or does not declare its rewards.
        """
        reads, name = self.reads, self.estimator.name
        if reads is None:
            raise CreditError(
                f"{name} does not say which rewards it reads, so that KL in the reward might be without effect",
                place="train.kl.place",
                remedy="@estimator(reads=['outcome', 'turns']) on the function (agentrl.estimators.estimator), or "
                "train.kl: {place: loss}",
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
        """True if a group of one episode gets no signal, except from repetition within the episode."""
        return bool(getattr(self.settings, "needs_members", False))

    @property
    def follows_training(self) -> bool:
        """True if credit changes with the finished share of the training. Of user code it is not known: True."""
        return bool(getattr(self.settings, "follows_training", self.estimator.name not in ESTIMATORS.built_in))

    def memory(self) -> StateValues | None:
        """The values of states that one policy's credit remembers between its updates; None: it remembers nothing."""
        if "state_value" not in self.needs or not isinstance(self.settings, CountedStates):
            return None
        return StateValues(self.settings)

    def assign(
        self,
        episodes: Iterable[Episode],
        columns: Mapping[str, Mapping[str, NDArray[Any]]] | None = None,
        progress: float = 0.0,
        memory: StateValues | None = None,
        iteration: int = 0,
    ) -> tuple[list[EpisodeCredit], dict[str, float]]:
        """Credit of every scored episode, in order, and metrics of the batch.

        Episodes that were not scored are not part of baselines and get no credit. Estimators see the turns of the
        policy; the advantage of another voice's turn is 0.

        Args:
            columns: columns that models compute, by column name and episode id.
            progress: share of the training that is done, 0 to 1.
            memory: what `memory` made, with the updates before this one; it counts these episodes. None: values of
                states come from these episodes alone.
            iteration: of the update, for the memory.

        Raises:
            CreditError: the estimator cannot work with these episodes.
        """
        given = list(episodes)
        table, known = CreditTable.from_episodes(given), {episode.id: episode for episode in given}
        joined = {
            name: np.concatenate([by_episode[id] for id in table.episode_ids if id in by_episode] or [np.zeros(0)])
            for name, by_episode in (columns or {}).items()
        }
        table = replace(table.with_columns(**joined), progress_of_training=progress)
        counted = {"shared_states": shared_states(table)} if (table.state >= 0).any() else {}
        memory = self.memory() if memory is None else memory
        if table.n_turns and memory is not None:
            value, told = memory.add(table, iteration)
            table, counted = table.with_columns(state_value=value), {**counted, **told}
        advantages = self(table)
        seated = table if table.seats is None else parted(table, table.seats).table
        credits = split_by_episode(table, advantages, self.estimator.name)
        return [over_all_turns(credit, known[credit.episode_id]) for credit in credits], {
            **seated.metrics(turns=self.reads is None or "turns" in self.reads),
            **advantages.metrics,
            **counted,
        }


def split_by_episode(table: CreditTable, advantages: Advantages, name: str) -> list[EpisodeCredit]:
    """Splits the columns by episode."""
    turns = advantages.turn.tolist()
    parts = {part: column.tolist() for part, column in advantages.parts.items()}
    tokens = None if advantages.token is None else advantages.token.tolist()
    targets = None
    if advantages.value_target is not None:
        targets = [value if np.isfinite(value) else None for value in advantages.value_target.tolist()]
    scales = None if advantages.clip_scale is None else advantages.clip_scale.tolist()
    turn_borders = pairwise(table.offsets.tolist())
    token_borders = pairwise(table.token_offsets[table.offsets].tolist())
    return [
        EpisodeCredit(
            episode_id=episode_id,
            estimator=name,
            turn_advantages=turns[start:end],
            parts={part: column[start:end] for part, column in parts.items()},
            token_advantages=None if tokens is None else tokens[slice(*span)],
            value_targets=None if targets is None else targets[slice(*span)],
            clip_scales=None if scales is None else scales[start:end],
        )
        for episode_id, (start, end), span in zip(table.episode_ids, turn_borders, token_borders, strict=True)
    ]


def over_all_turns(credit: EpisodeCredit, episode: Episode) -> EpisodeCredit:
    """Credit of the policy's turns as credit of all turns of its episode."""
    own = [turn.index for turn in episode.own_turns]
    if len(own) == len(episode.turns):
        return credit

    def spread(values: list[float], others: float = 0.0) -> list[float]:
        given = dict(zip(own, values, strict=True))
        return [given.get(turn.index, others) for turn in episode.turns]

    parts = {name: spread(values) for name, values in credit.parts.items()}
    scales = None if credit.clip_scales is None else spread(credit.clip_scales, 1.0)
    turns = spread(credit.turn_advantages)
    return msgspec.structs.replace(credit, turn_advantages=turns, parts=parts, clip_scales=scales)


def load_credit(settings: CreditSettings, base: Path | None = None) -> CreditAssigner:
    """Loads the estimator and checks its settings.

    Raises:
        RecipeError: the estimator does not exist, is not an estimator, or a setting is wrong.
    """
    found = ESTIMATORS.chosen(settings, base)
    return CreditAssigner(found.plug_in, found.settings)
