"""Monte-Carlo values of the turns of a stored episode, estimated by resuming before every turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.api.credit import credit
from agentrl.api.forks.fork import fork
from agentrl.api.forks.source import Source
from agentrl.api.recipes import Overrides
from agentrl.api.run import Run
from agentrl.api.run_dirs import require_whole
from agentrl.types.episode import Episode, Turn
from agentrl.types.errors import AgentRLError, StoreError
from agentrl.types.reporter import Reporter
from agentrl.view.values import draw_values


@dataclass(frozen=True)
class TurnValue:
    """Estimated value of a turn.

    Attributes:
        value: mean outcome reward of the episodes that were resumed before it.
        value_error: its standard error.
        worth: value after the turn minus value before it; after the last turn, the value is the episode's reward.
        worth_error: its standard error.
        credit: advantage from the estimator; None without one.
        did: its calls, or its text.
    """

    turn: int
    value: float
    value_error: float
    worth: float
    worth_error: float
    credit: float | None
    did: str


@dataclass(frozen=True)
class Probe:
    """The values of an episode's turns.

    Attributes:
        run: the folder of the resumed episodes.
        n: number of them before each turn.
        no_credit: the reason for missing credit; "" if there is credit.
    """

    episode: str
    reward: float
    run: Path
    n: int
    estimator: str
    no_credit: str
    turns: list[TurnValue]


def probe(
    run: str | Path | Run,
    episode: str,
    n: int = 16,
    *,
    estimator: str | None = None,
    plot: str | Path | None = None,
    script: str | None = None,
    checkpoint: str | Path | None = None,
    changed_code: bool = False,
    overrides: Overrides = (),
    out: str | Path | None = None,
    reporters: Sequence[Reporter] | None = None,
) -> Probe:
    """Resumes a stored episode `n` times before each turn of its policy, and compares mean outcome rewards.

    Args:
        estimator: estimator of the credit shown for comparison; default: that of the run.
        plot: a picture to draw, `.svg` or `.png`.
        script, checkpoint, changed_code, overrides, out, reporters: as for `fork`; `out` defaults to `runs/NAME-probe`.

    Raises:
        StoreError: as `fork`, or the episode has no reward.
        EpisodesMissing: a resumed episode failed.
    """
    with Source(run, episode, changed_code) as source:
        record, path, name = source.record, source.path, source.recipe.name
        if record.reward is None:
            raise StoreError("it has no reward", place=source.place, remedy="agentrl rescore RUN scores it")
    if not (turns := [turn.index for turn in record.own_turns]):
        raise StoreError("it has no turn", place=source.place, remedy="probe another episode")
    made = fork(
        run, record.id, turns, n, script=script, checkpoint=checkpoint, changed_code=changed_code,
        overrides=overrides, out=Path("runs") / f"{name}-probe" if out is None else out, reporters=reporters,
    )  # fmt: skip
    require_whole(made.path)
    rewards = rewards_by_turn(record, made.whole_episodes())
    given, used, why = _credit_of(path, record.id, estimator)
    result = Probe(record.id, record.reward, made.path, n, used, why, values_of(record, rewards, given))
    if plot is not None:
        draw_values(result.turns, plot, f"{record.id}: value before each turn, n = {n}", used)
    return result


def rewards_by_turn(record: Episode, resumed: Iterable[Episode]) -> dict[int, list[float]]:
    """Returns the rewards of the episodes that were resumed before each turn of the policy, in the order of ids."""
    rewards: dict[int, list[float]] = {turn.index: [] for turn in record.own_turns}
    for each in sorted(resumed, key=lambda each: each.id):
        if each.parent is not None and each.reward is not None:
            rewards[each.parent.turn].append(each.reward)
    return rewards


def values_of(
    record: Episode, rewards: dict[int, list[float]], credit: Sequence[float] | None = None
) -> list[TurnValue]:
    """The values of the turns of an episode's policy.

    Args:
        rewards: by turn, those of the episodes that were resumed before it.
        credit: one number per turn of the episode.
    """
    means = [(statistics.fmean(found), _error(found)) for _, found in sorted(rewards.items())]
    after = [*means[1:], (record.reward or 0.0, 0.0)]
    return [
        TurnValue(
            turn=turn.index,
            value=before[0],
            value_error=before[1],
            worth=then[0] - before[0],
            worth_error=math.hypot(before[1], then[1]),
            credit=None if credit is None else credit[turn.index],
            did=_did(turn),
        )
        for turn, before, then in zip(record.own_turns, means, after, strict=True)
    ]


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _credit_of(path: Path, id: str, estimator: str | None) -> tuple[list[float] | None, str, str]:
    """Returns credit, the estimator's name, and the reason for missing credit. Raises for a named estimator."""
    try:
        result = credit(path, estimator)
    except AgentRLError as error:
        if estimator is not None:
            raise
        return None, "", error.message
    given = next((credit.turn_advantages for credit in result.credits if credit.episode_id == id), None)
    return given, result.credit.estimator.name, "" if given is not None else "the episode has none"


def _did(turn: Turn) -> str:
    calls: list[Any] = [f"{call.name}({', '.join(map(repr, call.arguments.values()))})" for call in turn.calls]
    return " ".join((" ".join(calls) or turn.text).split())
