"""The credit table: groups of trajectories of turns, as flat NumPy columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentrl.estimators.arrays import Bools, Floats, Ints, discounted
from agentrl.estimators.history import History, history_of
from agentrl.estimators.lineage import origins
from agentrl.estimators.seats import Seats, seats_of
from agentrl.types.episode import Episode, Turn
from agentrl.types.errors import CreditError
from agentrl.types.figures.of_episodes import immediate
from agentrl.types.figures.sums import TOLERANCE

Weighting = Literal["trajectory", "turn", "token"]

OPTIONAL: dict[str, tuple[Weighting, type]] = {
    "answer": ("trajectory", np.int64),
    "win_rate": ("trajectory", np.float64),
    "action": ("turn", np.int64),
    "observation_tokens": ("turn", np.int64),
    "origin": ("turn", np.int64),
    "role": ("turn", np.int64),
    "gold_logprob": ("turn", np.float64),
    "hindsight_logprob": ("turn", np.float64),
    "process": ("turn", np.float64),
    "progress": ("turn", np.float64),
    "executed": ("turn", np.float64),
    "state_value": ("turn", np.float64),
    "token_reward": ("token", np.float64),
    "span_reward": ("token", np.float64),
    "span_end": ("token", np.bool_),
    "behaviour_logprob": ("token", np.float64),
    "ref_logprob": ("token", np.float64),
    "teacher_logprob": ("token", np.float64),
    "ema_logprob": ("token", np.float64),
    "prm_logprob": ("token", np.float64),
    "entropy": ("token", np.float64),
    "value": ("token", np.float64),
    "wrong": ("token", np.float64),
}
"""Optional columns: the unit of an entry, and its type. See `CreditTable.with_columns`."""

UNITS: dict[str, Weighting] = {
    **dict.fromkeys(("group", "score", "length"), "trajectory"),
    **dict.fromkeys(("reward", "state", "tokens", "valid"), "turn"),
    **{name: unit for name, (unit, _) in OPTIONAL.items()},
}
"""The unit of an entry of each column."""


Column = TypeVar("Column")


def needed(column: Column | None, name: str) -> Column:
    """Returns an optional column that an estimator reads.

    Raises:
        CreditError: the table does not have it.
    """
    if column is None:
        raise CreditError(
            f"the credit table has no column {name!r}", remedy=f"the estimator names it: needs={{{name!r}}}"
        )
    return column


@dataclass(frozen=True, eq=False)
class CreditTable:
    """The input of estimators. Turns are ordered by trajectory and time; failed members are absent.

    Group columns [n_groups]:
        group_ids: in order of first appearance.
        task_ids: the task that a group tried; None: each group has a task of its own.

    Trajectory columns [n_trajectories]:
        episode_ids: unique.
        group: index into `group_ids`.
        score: the outcome reward R_i of the whole trajectory.
        length: number of turns T_i; 0 for an episode that ended before its first turn.

    Turn columns [n_turns]:
        reward: immediate reward r_{i,t}, WITHOUT the outcome (see `step_reward`).
        state: key of the state that the turn acted on, an index into `states`; -1 if unknown. Equal text, equal index,
            in the whole table; anchor groups are formed inside a group.
        tokens: number of sampled tokens; 0 for turns that are not trained on.
        valid: True if all calls of the turn could be parsed.

    Optional columns, None if absent (`OPTIONAL` has their units):
        answer: index of the trajectory's final answer; equal text, equal index. -1: no answer.
        win_rate: share of the comparisons within its group that the trajectory won, 0 to 1.
        action: index of what the turn did (its calls with arguments, or its text); equal text, equal index.
        observation_tokens: number of tokens appended between this turn's and the next's.
        origin: index of the sampled turn that this is, or that a fork took over: equal numbers, the same turn.
        role: index of the agent of the turn.
        gold_logprob: mean log-probability of the gold answer's tokens, given everything before the turn (nats).
        hindsight_logprob: mean log-probability of the turn's own tokens, given everything before it and the outcome of
            the episode (nats).
        process: a judge's score of the turn, from 0 to 1; 0 if the judge's reply could not be parsed.
        progress: the turn's contribution to the outcome, predicted by a progress head.
        executed: 1 for a turn that the environment carried out, else 0: all of its calls (`CallRecord.outcome` is
            `ok`), or a reply without calls that an environment answered; and none said that it did nothing
            (`ToolResult.executed`).
        state_value: mean return of the state that the turn acted on, counted over this iteration and earlier ones
            (`agentrl/estimators/state_values.py`).
        token_reward: reward of the sampled token, in addition to its turn's and trajectory's; training puts KL there.
        span_reward: part of the turn's immediate reward that spans of the text earned, on their last tokens.
        span_end: True for the last token of a span.
        behaviour_logprob: of the sampled tokens, under the policy that sampled them.
        ref_logprob, teacher_logprob, ema_logprob: of the sampled tokens, under the reference policy, the teacher, and
            the moving average of the policy.
        prm_logprob: of the sampled tokens, under an implicit process reward model.
        entropy: of the policy where it sampled the token (nats).
        value: the critic's value of the state in which the token was sampled.
        wrong: share of the critiques, 0 to 1, that mark the span of this token, or its turn, as wrong.
        history: a function that returns all tokens of the trajectories, observations included (they are many).
        progress_of_training: finished share of the training, 0 to 1, for schedules.
        seats: turns and outcomes by seat, if an episode has several. Estimators get one trajectory per seat.
    """

    group_ids: list[str]
    episode_ids: list[str]
    group: Ints
    score: Floats
    length: Ints
    reward: Floats
    state: Ints
    tokens: Ints
    valid: Bools
    states: list[str]
    task_ids: list[str] | None = None
    answer: Ints | None = None
    win_rate: Floats | None = None
    action: Ints | None = None
    observation_tokens: Ints | None = None
    origin: Ints | None = None
    role: Ints | None = None
    gold_logprob: Floats | None = None
    hindsight_logprob: Floats | None = None
    process: Floats | None = None
    progress: Floats | None = None
    executed: Floats | None = None
    state_value: Floats | None = None
    token_reward: Floats | None = None
    span_reward: Floats | None = None
    span_end: Bools | None = None
    behaviour_logprob: Floats | None = None
    ref_logprob: Floats | None = None
    teacher_logprob: Floats | None = None
    ema_logprob: Floats | None = None
    prm_logprob: Floats | None = None
    entropy: Floats | None = None
    value: Floats | None = None
    wrong: Floats | None = None
    history: Callable[[], History] | None = None
    progress_of_training: float = 0.0
    seats: Seats | None = None

    @classmethod
    def from_columns(
        cls,
        *,
        episode: Sequence[str],
        group: Sequence[str],
        score: ArrayLike,
        length: ArrayLike,
        reward: ArrayLike,
        tokens: ArrayLike,
        state: Sequence[str | None] | None = None,
        valid: ArrayLike | None = None,
        **optional: Any,
    ) -> CreditTable:
        """Makes a table from plain columns.

        Args:
            episode, group, score, length: one entry per trajectory; `group` is the group's id.
            reward, tokens, state, valid: one entry per turn, trajectory by trajectory. `state` None: no keys.
            optional: columns of `OPTIONAL`, as `with_columns` takes them.

        Raises:
            CreditError: columns differ in length, a reward is not finite, or an episode occurs twice.
        """
        lengths = np.asarray(length, np.int64)
        turns = int(lengths.sum())
        group_index: dict[str, int] = {}
        state_index: dict[str, int] = {}
        groups = [group_index.setdefault(name, len(group_index)) for name in group]
        keys = [-1 if s is None else state_index.setdefault(s, len(state_index)) for s in state or [None] * turns]
        table = cls(
            group_ids=list(group_index),
            episode_ids=list(episode),
            group=np.array(groups, np.int64),
            score=np.asarray(score, np.float64),
            length=lengths,
            reward=np.asarray(reward, np.float64),
            state=np.array(keys, np.int64),
            tokens=np.asarray(tokens, np.int64),
            valid=np.ones(turns, np.bool_) if valid is None else np.asarray(valid, np.bool_),
            states=list(state_index),
        )
        table._check()
        return table.with_columns(**optional)

    def with_columns(self, **columns: Any) -> CreditTable:
        """Returns the table with optional columns set, one entry per unit in `OPTIONAL` (trajectory, turn or token).

        Integer columns also accept texts, which are numbered in order of appearance (None: -1).

        Raises:
            CreditError: unknown column, wrong length, or a number that is not finite.
        """
        units = {"trajectory": self.n_trajectories, "turn": self.n_turns, "token": self.n_tokens}
        made: dict[str, Any] = {}
        for name, column in columns.items():
            if name not in OPTIONAL:
                raise CreditError(f"there is no optional column {name!r}", remedy=f"allowed: {', '.join(OPTIONAL)}")
            unit, kind = OPTIONAL[name]
            array: NDArray[Any] = np.asarray(column)
            array = numbered(column) if array.dtype.kind in "OU" else array.astype(kind)
            if array.shape != (units[unit],):
                raise CreditError(f"column {name!r} has shape {array.shape}, expected ({units[unit]},)")
            if not np.isfinite(array).all():
                raise CreditError(f"column {name!r} holds a number that is not finite")
            made[name] = array
        return replace(self, **made)

    @classmethod
    def from_episodes(cls, episodes: Iterable[Episode]) -> CreditTable:
        """Makes a table from the scored episodes, without the others, and from the turns of the policy.

        Raises:
            CreditError: a reward is NaN or infinite, or an episode is given twice.
        """
        scored = [episode for episode in episodes if episode.scored]
        pairs = [(episode, turn) for episode in scored for turn in episode.own_turns]
        table = cls.from_columns(
            episode=[episode.id for episode in scored],
            group=[episode.group_id for episode in scored],
            score=np.array([episode.reward for episode in scored], np.float64),
            length=[len(episode.own_turns) for episode in scored],
            reward=[immediate(turn) for _, turn in pairs],
            state=[turn.state for _, turn in pairs],
            tokens=[episode.trained(turn) for episode, turn in pairs],
            valid=[turn.valid for _, turn in pairs],
            **_optional(scored, pairs),
        )
        tasks = {episode.group_id: episode.task.id for episode in scored}
        return replace(
            table,
            task_ids=[tasks[group] for group in table.group_ids],
            history=partial(history_of, scored),
            seats=seats_of(scored),
        )

    @property
    def n_groups(self) -> int:
        return len(self.group_ids)

    @property
    def n_trajectories(self) -> int:
        return len(self.episode_ids)

    @property
    def n_turns(self) -> int:
        return len(self.reward)

    @property
    def n_tokens(self) -> int:
        return int(self.token_offsets[-1])

    @cached_property
    def trajectory(self) -> Ints:
        """Trajectory index of every turn [n_turns]."""
        return np.repeat(np.arange(self.n_trajectories), self.length)

    @cached_property
    def offsets(self) -> Ints:
        """Turns of trajectory i are `offsets[i]` to `offsets[i + 1]` [n_trajectories + 1]."""
        return np.concatenate([[0], np.cumsum(self.length)])

    @cached_property
    def token_offsets(self) -> Ints:
        """Sampled tokens of turn k are `token_offsets[k]` to `token_offsets[k + 1]` [n_turns + 1]."""
        return np.concatenate([[0], np.cumsum(self.tokens)])

    @cached_property
    def token_turn(self) -> Ints:
        """Turn index of every sampled token [n_tokens]."""
        return np.repeat(np.arange(self.n_turns), self.tokens)

    @cached_property
    def token_left(self) -> Ints:
        """Number of sampled tokens after each sampled token in its trajectory [n_tokens]."""
        ends = self.token_offsets[self.offsets[1:]]
        return ends[self.trajectory[self.token_turn]] - np.arange(self.n_tokens) - 1

    @cached_property
    def turns_left(self) -> Ints:
        """Number of turns after each turn in its trajectory [n_turns]."""
        return self.length[self.trajectory] - self.turn - 1

    def turn_mean(self, token: Floats) -> Floats:
        """Mean over the tokens of every turn; 0 for a turn without tokens [n_turns]."""
        return np.bincount(self.token_turn, token, self.n_turns) / np.maximum(self.tokens, 1)

    @cached_property
    def turn(self) -> Ints:
        """Index of every turn in its trajectory [n_turns]."""
        return np.arange(self.n_turns) - self.offsets[self.trajectory]

    @cached_property
    def turn_group(self) -> Ints:
        """Group index of every turn [n_turns]."""
        return self.group[self.trajectory]

    @cached_property
    def group_size(self) -> Ints:
        """Trajectories of every group [n_groups]."""
        return np.bincount(self.group, minlength=self.n_groups)

    @cached_property
    def step_reward(self) -> Floats:
        """Immediate reward, plus the outcome on the last turn [n_turns]."""
        steps = self.reward.copy()
        played = self.length > 0
        steps[self.offsets[1:][played] - 1] += self.score[played]
        return steps

    @cached_property
    def total_reward(self) -> Floats:
        """Outcome plus all immediate rewards, not discounted [n_trajectories]."""
        return self.score + np.bincount(self.trajectory, self.reward, minlength=self.n_trajectories)

    def on_tokens(self) -> Floats:
        """A copy of the rewards of tokens; zeros if there are none [n_tokens]."""
        return np.zeros(self.n_tokens) if self.token_reward is None else self.token_reward.copy()

    def placed(self, steps: Floats) -> tuple[Floats, Floats]:
        """Splits rewards of turns, the immediate ones among them, by place.

        Args:
            steps: one reward per turn [n_turns].

        Returns:
            The rewards of tokens and of spans, on their tokens [n_tokens]; the rest of each turn's reward [n_turns].
        """
        if self.span_reward is None:
            return self.on_tokens(), steps
        rest = steps - np.bincount(self.token_turn, self.span_reward, self.n_turns)
        return self.on_tokens() + self.span_reward, rest

    def returns(self, gamma: float) -> Floats:
        """Reward-to-go of every turn, discounted by `gamma` per turn [n_turns]."""
        return discounted(self.step_reward, self.turns_left, gamma)

    def trajectory_weights(self, weighting: Weighting) -> Floats:
        """Weight of each trajectory in a statistic over trajectories [n_trajectories]."""
        match weighting:
            case "trajectory":
                return np.ones(self.n_trajectories)
            case "turn":
                return self.length.astype(np.float64)
            case "token":
                return np.diff(self.token_offsets[self.offsets]).astype(np.float64)

    def turn_weights(self, weighting: Weighting) -> Floats:
        """Weight of each turn in a statistic over turns; sums to `trajectory_weights` [n_turns]."""
        match weighting:
            case "trajectory":
                return 1.0 / self.length[self.trajectory]
            case "turn":
                return np.ones(self.n_turns)
            case "token":
                return self.tokens.astype(np.float64)

    def metrics(self, *, turns: bool = False) -> dict[str, float]:
        """Metrics of the groups: their number and size, and the shares without signal.

        `zero_variance_groups` is the share of groups of two or more with equal scores, `single_groups` the share of
        groups with one member.

        Args:
            turns: whether the rewards of turns are part of a score.
        """
        if not self.n_groups:
            return {"groups": 0.0, "trajectories": 0.0}
        score = self.total_reward if turns else self.score
        low, high = np.full(self.n_groups, np.inf), np.full(self.n_groups, -np.inf)
        np.minimum.at(low, self.group, score)
        np.maximum.at(high, self.group, score)
        return {
            "groups": float(self.n_groups),
            "trajectories": float(self.n_trajectories),
            "zero_variance_groups": float(np.mean((high - low <= TOLERANCE) & (self.group_size > 1))),
            "single_groups": float(np.mean(self.group_size == 1)),
        }

    def _check(self) -> None:
        n, turns = self.n_trajectories, int(self.length.sum())
        sizes = {"group": n, "score": n, "length": n, "reward": turns, "state": turns, "tokens": turns, "valid": turns}
        for name, size in sizes.items():
            if getattr(self, name).shape != (size,):
                raise CreditError(f"column {name!r} has shape {getattr(self, name).shape}, expected ({size},)")
        if len(set(self.episode_ids)) < n:
            twice = next(name for name in self.episode_ids if self.episode_ids.count(name) > 1)
            raise CreditError(f"episode {twice!r} is given twice", remedy="credit takes every episode once")
        for value, owner, what in (
            (self.score, np.arange(n), "reward"),
            (self.reward, self.trajectory, "immediate reward"),
        ):
            if not np.isfinite(value).all():
                at = int(np.argmin(np.isfinite(value)))
                where = f", turn {self.turn[at]}" if value is self.reward else ""
                raise CreditError(
                    f"{what} {value[at]} is not finite",
                    place=f"episode {self.episode_ids[owner[at]]}{where}",
                    remedy="a reward is a finite number, or None where nothing could be scored",
                )


def numbered(texts: Iterable[str | None]) -> Ints:
    """Numbers texts in order of first appearance; None becomes -1."""
    index: dict[str, int] = {}
    return np.array([-1 if text is None else index.setdefault(text, len(index)) for text in texts], np.int64)


def _optional(episodes: list[Episode], pairs: list[tuple[Episode, Turn]]) -> dict[str, Any]:
    """The optional columns for which all episodes have the data."""
    columns: dict[str, Any] = {
        "action": numbered(turn.action for _, turn in pairs),
        "observation_tokens": [n for episode in episodes for n in _observation_tokens(episode)],
        "origin": origins(episodes),
        "role": numbered(turn.agent for _, turn in pairs),
        "executed": [_carried_out(turn) for _, turn in pairs],
    }
    for name in ("gold_logprob", "hindsight_logprob"):
        scores = [getattr(turn, name) for _, turn in pairs]
        if None not in scores:
            columns[name] = scores
    if any("process" in turn.rewards for _, turn in pairs):
        columns["process"] = [turn.rewards.get("process") or 0.0 for _, turn in pairs]
    if any("wrong" in turn.rewards for _, turn in pairs):
        columns["wrong"] = np.concatenate([_wrong(turn, episode.trained(turn)) for episode, turn in pairs])
    if any(turn.spans for _, turn in pairs):
        columns["span_reward"], columns["span_end"] = _spans(pairs)
    if any(episode.answer is not None for episode in episodes):
        columns["answer"] = numbered(
            None if episode.answer is None else " ".join(episode.answer.casefold().split()) for episode in episodes
        )
    rates = [episode.components.get("win_rate") for episode in episodes]
    if episodes and None not in rates:
        columns["win_rate"] = rates
    logprobs = [episode.nodes[turn.node].logprobs if episode.trained(turn) else [] for episode, turn in pairs]
    if None not in logprobs:
        columns["behaviour_logprob"] = [logprob for turn in logprobs for logprob in turn or ()]
    return columns


def _spans(pairs: list[tuple[Episode, Turn]]) -> tuple[Floats, Bools]:
    """The columns `span_reward` and `span_end`. A span of unknown tokens ends with its turn."""
    sizes = [episode.trained(turn) for episode, turn in pairs]
    starts = np.cumsum([0, *sizes])
    earned, ends = np.zeros(starts[-1]), np.zeros(starts[-1], np.bool_)
    for (_, turn), start, size in zip(pairs, starts, sizes, strict=False):
        for span in turn.spans if size else ():
            at = start + (span.last if 0 <= span.last < size else size - 1)
            earned[at] += span.value * (1.0 if turn.reward is None else span.weight)
            ends[at] = True
    return earned, ends


def _wrong(turn: Turn, tokens: int) -> Floats:
    """The component `wrong` of each token: of the spans that hold it the largest; without spans, of the turn.

    A span of unknown tokens holds the whole turn.
    """
    spans = [span for span in turn.spans if span.component == "wrong"]
    if not spans:
        return np.full(tokens, turn.rewards.get("wrong") or 0.0)
    found = np.zeros(tokens)
    for span in spans:
        held = slice(span.first, span.last + 1) if span.first >= 0 else slice(None)
        found[held] = np.maximum(found[held], span.value)
    return found


def _carried_out(turn: Turn) -> bool:
    acted = all(call.outcome == "ok" for call in turn.calls) if turn.calls else turn.heard is not None
    return acted and turn.executed


def _observation_tokens(episode: Episode) -> list[int]:
    """Per turn: number of rendered tokens between it and the first turn that continues it; 0 if none does."""
    found: dict[int, int] = {}
    own = {turn.node for turn in episode.own_turns} if episode.nodes else set()
    for node in sorted(own):
        rendered, at = 0, episode.nodes[node].parent
        while at >= 0 and at not in own:
            rendered += len(episode.nodes[at].token_ids)
            at = episode.nodes[at].parent
        found.setdefault(at, rendered)
    return [found.get(turn.node, 0) for turn in episode.own_turns]
