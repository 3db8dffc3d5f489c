"""Reasons for a credit of 0, in a few words, from what a run recorded.

A reason is a fact of the record: the rewards of the group, shut gates, calls that failed, parts that cancel. Without
one, the estimator is named alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from agentrl.store.codec import StoredCredit
from agentrl.types.episode import POLICY, Episode, GateVerdict, Turn
from agentrl.types.errors import StoreError
from agentrl.types.figures.of_episodes import earned, immediate
from agentrl.view.web.library import Json, ViewedRun

_MEMBERS = 64
"""Episodes of a group that are read for their states."""
_SHOWN = 60
"""Characters of a state in a reason."""


def reasons(run: ViewedRun, found: Episode, credit: StoredCredit | None, needs: Collection[str]) -> Json:
    """Says why an episode, or some of its turns, have a credit of 0 or none.

    Args:
        needs: the columns that the estimator of the credit reads, as far as they are known.

    Returns:
        `episode`: the reason why no turn has credit, None if one has; `turns`: the reason for each turn whose
        credit is 0, by its index.
    """
    if credit is None:
        return {"episode": _none_recorded(found), "turns": {}}
    given = credit.turn_advantages
    zeros = [turn for turn in found.turns if turn.index < len(given) and _is_zero(given[turn.index])]
    if len(zeros) == len(found.turns):
        reason = _of_episode(run, found, credit.estimator)
        return {"episode": reason, "turns": {turn.index: _of_other_policy(found, turn) or reason for turn in zeros}}
    failed = _failed_turns_have_none(found, {turn.index for turn in zeros})
    met = _other_states(run, found) if "state" in needs and zeros else None
    return {"episode": None, "turns": {turn.index: _of_turn(found, credit, turn, failed, met) for turn in zeros}}


def _is_zero(value: float) -> bool:
    return math.isclose(value, 0.0, abs_tol=1e-9)


def _none_recorded(found: Episode) -> str | None:
    """The reason why an episode has no credit; None: the record does not tell."""
    if found.error is not None and not found.scored:
        return f"the episode failed ({found.error.kind}): it is left out of the credit"
    if not found.scored:
        return "the episode has no reward: it is left out of the credit"
    return {
        "eval": "an evaluation does not train: no credit",
        "demo": "a demonstration is imitated: no credit",
        "rollout": "a rollout does not train: agentrl credit RUN --save computes it",
    }.get(found.split)


def _of_episode(run: ViewedRun, found: Episode, estimator: str) -> str:
    """The reason why no turn of an episode has credit."""
    shut = [gate for gate in found.gates if gate.open is False and gate.shuts]
    told = [f"gate shut: {_gate(gate)}" for gate in shut] if _is_zero(earned(found) or 0.0) else []
    return "; ".join([*told, _of_group(run, found, estimator)])


def _gate(gate: GateVerdict) -> str:
    return f"{gate.on} {'>' if gate.strict else '≥'} {gate.threshold:g}"


def _of_group(run: ViewedRun, found: Episode, estimator: str) -> str:
    reward = earned(found)
    members = run.reader.select(
        "reward FROM all_episodes WHERE group_id = ? AND status IN ('done', 'truncated') AND reward IS NOT NULL",
        [found.group_id],
    )
    rewards = [float(value) for (value,) in members]
    if reward is None or not rewards:
        return f"{estimator} gives it none"
    if len(rewards) == 1:
        return "the only scored episode of its group: nothing to compare it with"
    if _is_zero(max(rewards) - min(rewards)):
        return f"all {len(rewards)} episodes of the group have reward {reward:.2f}: no signal"
    if _is_zero(reward - sum(rewards) / len(rewards)):
        return f"its reward of {reward:.2f} is the mean of the group"
    return f"{estimator} gives a reward of {reward:.2f} in this group no credit"


def _of_turn(
    found: Episode, credit: StoredCredit, turn: Turn, failed: Collection[int], met: Collection[str] | None
) -> str:
    """The reason for a credit of 0 of a turn, in an episode of which other turns have credit."""
    if (other := _of_other_policy(found, turn)) is not None:
        return other
    parts = {name: values[turn.index] for name, values in credit.parts.items() if turn.index < len(values)}
    if counted := {name: value for name, value in parts.items() if not _is_zero(value)}:
        return " and ".join(f"{name} {value:+.3f}" for name, value in counted.items()) + " cancel"
    if turn.index in failed:
        return f"{credit.estimator} gives failed turns no credit"
    if _earns_nothing_from(found, turn):
        return "nothing was earned from this turn on"
    if met is not None and turn.state is not None and turn.state not in met:
        return f"no other turn of the group acted on the state {turn.state[:_SHOWN]}"
    return f"{credit.estimator} gives this turn none"


def _of_other_policy(found: Episode, turn: Turn) -> str | None:
    """The reason, if another policy spoke."""
    if (policy := found.policy_of(turn)) == POLICY:
        return None
    trains = found.contexts[turn.context].trains
    return f"the turn is of the policy {policy}" + ("" if trains else ", which is not trained")


def _failed_turns_have_none(found: Episode, zeros: Collection[int]) -> set[int]:
    """The turns whose calls failed, if all of them have a credit of 0 and all turns with one have failed calls."""
    failed = {turn.index for turn in found.own_turns if turn.calls and all(c.outcome != "ok" for c in turn.calls)}
    own = {turn.index for turn in found.own_turns} & set(zeros)
    return failed if failed == own else set()


def _earns_nothing_from(found: Episode, turn: Turn) -> bool:
    """True if the outcome and the rewards of a turn and of those after it are 0."""
    later: Sequence[Turn] = [each for each in found.own_turns if each.index >= turn.index]
    return _is_zero(found.outcome_of(turn)) and all(_is_zero(immediate(each)) for each in later)


def _other_states(run: ViewedRun, found: Episode) -> set[str]:
    """The states on which several turns of a group acted."""
    ids = run.reader.select(f"id FROM all_episodes WHERE group_id = ? ORDER BY id LIMIT {_MEMBERS}", [found.group_id])
    damaged: list[StoreError] = []  # the damage is told with the run
    seen: set[str] = set()
    several: set[str] = set()
    for member in run.reader.episodes([id for (id,) in ids], damaged=damaged):
        for turn in member.own_turns:
            if turn.state is not None:
                (several if turn.state in seen else seen).add(turn.state)
    return several
