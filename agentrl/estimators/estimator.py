"""Estimators: functions of a credit table and their settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from agentrl.estimators.arrays import Floats
from agentrl.estimators.parted import parted
from agentrl.estimators.table import CreditTable
from agentrl.registry.settings import Declared, declared
from agentrl.types.errors import CreditError, nearest

Granularity = Literal["trajectory", "turn", "token"]
Certainty = Literal["A", "B", "C"]
Reward = Literal["outcome", "verdict", "turns", "first_turn", "tokens"]
"""A reward that an estimator may read: the outcome of the trajectory as a quantity (`outcome`) or as a verdict of right
or wrong, from which nothing may be subtracted (`verdict`); the immediate rewards of all turns (`turns`) or of the first
turn only (`first_turn`); the rewards of tokens (`tokens`, `CreditTable.token_reward`)."""
Need = Literal[
    "state",
    "action",
    "answer",
    "win_rate",
    "role",
    "gold_logprob",
    "hindsight_logprob",
    "process",
    "progress",
    "executed",
    "history",
    "behaviour_logprob",
    "ref_logprob",
    "teacher_logprob",
    "ema_logprob",
    "prm_logprob",
    "entropy",
    "value",
    "state_value",
    "wrong",
    "observation_tokens",
    "origin",
]

NEEDS: dict[Need, tuple[Callable[[CreditTable], bool], str, str]] = {
    "state": (
        lambda table: bool((table.state >= 0).any()),
        "no turn has a recorded state",
        "a rollout records states only if the credit of its recipe reads them: roll out again with that credit "
        "(--set credit=ESTIMATOR), and with a state_key() method in a tool or the agent, or a signature (agent.state: "
        "tools); or take an estimator without states",
    ),
    "action": (
        lambda table: table.action is not None,
        "the table does not say what the turns did (column 'action')",
        "CreditTable.from_episodes fills it; give your own table with_columns(action=[...])",
    ),
    "answer": (
        lambda table: table.answer is not None,
        "no episode gave an answer",
        "let the agent end with an answer (tools: [answer]), or take an estimator that does not compare answers",
    ),
    "win_rate": (
        lambda table: table.win_rate is not None,
        "some episode was never compared with the others of its group",
        "add rewards: {win_rate: {judge: {url: ..., model: ...}}}, or a component of this name that gives the share "
        "won (weight: 0 keeps it out of the outcome)",
    ),
    "behaviour_logprob": (
        lambda table: table.behaviour_logprob is not None,
        "some sampled tokens have no log-probabilities",
        "roll out with an engine that gives them (torch, vllm); text-only engines do not",
    ),
    "observation_tokens": (
        lambda table: table.observation_tokens is not None,
        "the table does not count observation tokens",
        "CreditTable.from_episodes fills it; give your own table with_columns(observation_tokens=[...])",
    ),
    "origin": (
        lambda table: table.origin is not None,
        "the table does not say which turns forks took over (column 'origin')",
        "CreditTable.from_episodes fills it; give your own table with_columns(origin=[...])",
    ),
    "role": (
        lambda table: table.role is not None,
        "the table does not say which agent spoke (column 'role')",
        "CreditTable.from_episodes takes it from session.generate(agent=...); or with_columns(role=[...])",
    ),
    "gold_logprob": (
        lambda table: table.gold_logprob is not None,
        "the gold answer was not scored before every turn",
        "let tasks hold data['answer'], and roll out with a model, with this estimator or with information_gain: {} "
        "in the recipe",
    ),
    "hindsight_logprob": (
        lambda table: table.hindsight_logprob is not None,
        "the turns were not scored in hindsight",
        "roll out with a model, with this estimator or with hindsight: {} in the recipe",
    ),
    "process": (
        lambda table: table.process is not None,
        "no turn has a reward component named 'process'",
        "judge the turns: rewards: {process: {use: rubric_judge, reads: turn, weight: 0, judge: ...}}, or "
        "session.reward(process=...), from 0 to 1",
    ),
    "wrong": (
        lambda table: table.wrong is not None,
        "no turn has a reward component named 'wrong'",
        "let critiques mark the wrong turns: rewards: {wrong: {use: critique, weight: 0, judge: ...}}, or "
        "session.reward(wrong=...), the share of critiques that did",
    ),
    "history": (
        lambda table: table.history is not None,
        "the table does not hold the tokens of its trajectories",
        "CreditTable.from_episodes gives them; dataclasses.replace(table, history=...) for your own",
    ),
    "value": (lambda table: table.value is not None, "there are no values", "train with a critic: train.critic: {}"),
    "state_value": (
        lambda table: table.state_value is not None,
        "there are no counted values of states",
        "let the settings be a CountedStates (agentrl.estimators.state_values), and the needs hold 'state', too; or "
        "table.with_columns(state_value=[...])",
    ),
    "progress": (
        lambda table: table.progress is not None,
        "there are no progress estimates",
        "train with a critic, which learns them: train.critic: {}",
    ),
    "executed": (
        lambda table: table.executed is not None,
        "the table does not say whether the turns' calls were carried out (column 'executed')",
        "CreditTable.from_episodes fills it; give your own table with_columns(executed=[...])",
    ),
    "entropy": (
        lambda table: table.entropy is not None,
        "there are no entropies of the policy",
        "agentrl train computes them; give your own table with_columns(entropy=[...])",
    ),
    "ref_logprob": (
        lambda table: table.ref_logprob is not None,
        "there are no log-probabilities under a reference policy",
        "agentrl train computes them; give your own table with_columns(ref_logprob=[...])",
    ),
    "teacher_logprob": (
        lambda table: table.teacher_logprob is not None,
        "there are no log-probabilities under a teacher",
        "train with one: train.teacher: {path: FOLDER}; or table.with_columns(teacher_logprob=[...])",
    ),
    "ema_logprob": (
        lambda table: table.ema_logprob is not None,
        "there are no log-probabilities under a moving average of the policy",
        "train with one: train.ema_reference: {}; or table.with_columns(ema_logprob=[...])",
    ),
    "prm_logprob": (
        lambda table: table.prm_logprob is not None,
        "there are no log-probabilities under an implicit process reward model",
        "train with such a model: train.reward_model: {}; or table.with_columns(prm_logprob=[...])",
    ),
}
"""For each need: the test of the table, the problem if it fails, and the remedy."""

OF_EPISODES: frozenset[Need] = frozenset(
    {"answer", "win_rate", "gold_logprob", "hindsight_logprob", "progress", "prm_logprob"}
)
"""Columns of whole episodes: comparisons by judges, and outputs of models trained on one outcome. They are not valid
for seats with separate outcomes."""


@dataclass(frozen=True)
class Advantages:
    """The result of an estimator.

    Attributes:
        turn: float64 [n_turns]. For a token estimator the mean over the tokens of the turn, for display.
        token: float64 [n_tokens], if the tokens of a turn have different advantages.
        parts: summands of `turn` by name, float64 [n_turns] each.
        metrics: numbers for the metrics line.
        value_target: float64 [n_tokens], targets of the critic; NaN for tokens without a target.
        clip_scale: float64 [n_turns], factor of the loss's clip range at the turn's tokens.
    """

    turn: Floats
    token: Floats | None = None
    value_target: Floats | None = None
    parts: dict[str, Floats] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    clip_scale: Floats | None = None


_RENAMED = {"logprob": "it is now 'behaviour_logprob'"}


@dataclass(frozen=True)
class Estimator:
    """An estimator with its description. Call it with a table and its settings.

    Attributes:
        declared: its settings.
        source: the paper or code of the formula.
        certainty: A: read in the authors' code; B: paper rule, confirmed by a second source; C: reconstructed.
        needs: required columns, under default settings.
        needs_of: required columns for given settings, if they depend on them.
        reads: the rewards that it reads for given settings; None: unknown.
        in_unit: whether it takes scores in [0, 1] alone.
    """

    name: str
    function: Callable[..., Any]
    declared: Declared
    granularity: Granularity = "turn"
    source: str = "user code"
    certainty: Certainty | None = None
    needs: frozenset[Need] = frozenset()
    needs_of: Callable[[Any], Iterable[Need]] | None = None
    reads: Callable[[Any], Iterable[Reward]] | None = None
    in_unit: bool = False

    @property
    def settings(self) -> type[BaseModel]:
        """The pydantic model of the settings."""
        return self.declared.model

    def needed(self, settings: BaseModel) -> list[Need]:
        """The required columns for these settings, sorted."""
        return sorted(self.needs if self.needs_of is None else self.needs_of(settings))

    def check_seats(self, settings: BaseModel, place: str | None = None) -> None:
        """Checks that it can credit seats with separate outcomes.

        Raises:
            CreditError: it needs a column of whole episodes.
        """
        if whole := [need for need in self.needed(settings) if need in OF_EPISODES]:
            raise CreditError(
                f"{self.name} reads {', '.join(whole)} of whole episodes, and the seats of an episode have outcomes "
                "of their own",
                place=place,
                remedy="take an estimator that compares outcomes or rewards of turns: role_grpo, mars, grpo, returns",
            )

    def __call__(self, table: CreditTable, settings: BaseModel | None = None) -> Advantages:
        """Runs the estimator, on one trajectory per seat if episodes have several.

        Raises:
            CreditError: the table lacks what the estimator needs, or the result does not fit the table.
        """
        if not table.n_turns:
            return Advantages(np.zeros(0))
        settings = self.settings() if settings is None else settings
        if table.seats is not None and table.seats.own:
            self.check_seats(settings)
        if table.seats is None:
            return self._advantages(table, settings)
        seated = parted(table, table.seats)
        found = self._advantages(seated.table, settings)
        return replace(
            found,
            turn=seated.turn_whole(found.turn),
            token=seated.token_whole(found.token),
            value_target=seated.token_whole(found.value_target),
            parts={name: seated.turn_whole(part) for name, part in found.parts.items()},
            clip_scale=None if found.clip_scale is None else seated.turn_whole(found.clip_scale),
        )

    def _advantages(self, table: CreditTable, settings: BaseModel) -> Advantages:
        for need in self.needed(settings):
            met, wrong, remedy = NEEDS[need]
            if not met(table):
                raise CreditError(
                    f"{wrong}, which estimator {self.name!r} needs", remedy=remedy.replace("ESTIMATOR", self.name)
                )
        result = self.function(table, **self.declared.arguments(settings))
        if not isinstance(result, Advantages):
            result = Advantages(np.asarray(result, np.float64))
        self._check(table, result)
        return result

    def _check(self, table: CreditTable, result: Advantages) -> None:
        """Refuses results of wrong lengths and values that are not finite."""
        columns = {"turn": result.turn} | {f"parts[{name!r}]": part for name, part in result.parts.items()}
        if result.clip_scale is not None:
            columns["clip_scale"] = result.clip_scale
        for name, column in columns.items():
            if column.shape != (table.n_turns,):
                raise CreditError(f"estimator {self.name!r}: {name} has shape {column.shape}, not ({table.n_turns},)")
            if not np.isfinite(column).all():
                at = int(np.argmin(np.isfinite(column)))
                raise CreditError(
                    f"estimator {self.name!r}: {name} is {column[at]}",
                    place=f"episode {table.episode_ids[table.trajectory[at]]}, turn {table.turn[at]}",
                )
        if result.token is not None and (
            result.token.shape != (table.n_tokens,) or not np.isfinite(result.token).all()
        ):
            raise CreditError(
                f"estimator {self.name!r}: token has shape {result.token.shape} or is not finite; "
                f"expected ({table.n_tokens},)"
            )
        if result.value_target is not None and result.value_target.shape != (table.n_tokens,):
            raise CreditError(f"estimator {self.name!r}: value_target has shape {result.value_target.shape}")


def estimator(
    *,
    granularity: Granularity = "turn",
    source: str = "user code",
    certainty: Certainty | None = None,
    needs: Iterable[Need] | Callable[[Any], Iterable[Need]] = (),
    reads: Iterable[Reward] | Callable[[Any], Iterable[Reward]] | None = None,
    in_unit: bool = False,
) -> Callable[[Callable[..., Any]], Estimator]:
    """Makes an `Estimator` of a function `(table)`, `(table, settings: Model)` or `(table, scale: float = 1.0, ...)`.

    The function returns `Advantages`, or only an array [n_turns]. `needs` and `reads` may be functions of the settings.

    Raises:
        TypeError: the function does not take a table.
    """

    def wrap(function: Callable[..., Any]) -> Estimator:
        name = getattr(function, "__name__", type(function).__name__)
        own = declared(function, ["table"])
        needs_of = needs if callable(needs) else None
        fixed = frozenset(needs if not callable(needs) else needs(own.model()))
        if unknown := sorted({str(need) for need in fixed} - NEEDS.keys()):
            remedy = _RENAMED.get(unknown[0]) or nearest(unknown[0], [*NEEDS])
            raise CreditError(f"estimator {name!r} needs {unknown[0]!r}, which is not a column", remedy=remedy)
        reads_of = reads if reads is None or callable(reads) else partial(_always, tuple(reads))
        return Estimator(name, function, own, granularity, source, certainty, fixed, needs_of, reads_of, in_unit)

    return wrap


def _always(reads: tuple[Reward, ...], settings: Any) -> tuple[Reward, ...]:
    return reads
