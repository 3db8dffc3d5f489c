"""The episodes of a group, side by side."""

from __future__ import annotations

from typing import Any

from agentrl.store.codec import StoredCredit
from agentrl.types.episode import Episode, Turn, in_order
from agentrl.types.errors import StoreError
from agentrl.types.figures.of_episodes import success_of
from agentrl.types.figures.openings import groups_that_differ
from agentrl.view.web.episode import Cut
from agentrl.view.web.library import Json, RunLibrary, ViewedRun
from agentrl.view.web.query import Query, RequestError
from agentrl.view.web.rows import credit_of, rows_of

_MEMBERS = 64
_SHORT = 400
"""Characters of a text."""


def group(library: RunLibrary, ask: Query) -> Json:
    """The members of a group, aligned by turn and by the state that they acted on."""
    run, name = library.run(ask.needed("run")), ask.needed("id")
    listed = run.reader.select("id, opening FROM all_episodes WHERE group_id = ? ORDER BY id", [name])
    if not listed:
        raise RequestError(404, f"no group {name!r}", place=str(run.path))
    members = in_order(_readable(run, [id for id, _ in listed[:_MEMBERS]]))
    if not members:
        raise RequestError(
            500, f"no episode of group {name!r} can be read", remedy="`agentrl check RUN` says what is damaged"
        )
    rows = {row["id"]: row for row in rows_of(run, [episode.id for episode in members])}
    task = members[0].task
    cut = Cut(20_000)
    return {
        "group_id": name,
        "task": cut.of({"id": task.id, "instruction": task.instruction, "data": task.data}),
        "members": [rows[episode.id] | _member(run, episode) for episode in members],
        "more": len(listed) - len(members),
        "by_turn": _by_turn(members),
        "by_state": _by_state(members),
        "diverges": _diverges(members),
        "differs": [None, *(_first_difference(members[0], other) for other in members[1:])],
        "opening_differs": bool(groups_that_differ((name, opening) for _, opening in listed)),
    }


def _readable(run: ViewedRun, ids: list[str]) -> list[Episode]:
    damaged: list[StoreError] = []
    return list(run.reader.episodes(ids, damaged=damaged))


def _member(run: ViewedRun, episode: Episode) -> Json:
    credit = credit_of(run, episode.id)
    return {
        "success": success_of(episode),
        "estimator": None if credit is None else credit.estimator,
        "turns": [_turn(turn, credit) for turn in episode.turns],
    }


def _turn(turn: Turn, credit: StoredCredit | None) -> Json:
    return {
        "index": turn.index,
        "agent": turn.agent,
        "context": turn.context,
        "state": turn.state,
        "action": _short(turn.action),
        "text": _short(turn.text),
        "calls": [
            {
                "name": call.name,
                "arguments": _short(", ".join(f"{name}={value!r}" for name, value in call.arguments.items())),
                "outcome": call.outcome,
                "result": _short(call.result),
            }
            for call in turn.calls
        ],
        "reward": turn.reward,
        "advantage": _at(credit.turn_advantages, turn.index) if credit is not None else None,
        "parts": {} if credit is None else {name: _at(values, turn.index) for name, values in credit.parts.items()},
        "finish": turn.finish,
    }


def _at(values: list[float], index: int) -> float | None:
    return values[index] if index < len(values) else None


def _short(text: str) -> str:
    return text if len(text) <= _SHORT else text[:_SHORT] + "..."


def _by_turn(members: list[Episode]) -> list[list[int | None]]:
    longest = max(len(member.turns) for member in members)
    return [[row if row < len(member.turns) else None for member in members] for row in range(longest)]


def _by_state(members: list[Episode]) -> list[Json]:
    """The turns that acted on the same state, in the order in which states were met first."""
    states: dict[str, list[list[int]]] = {}
    for row in range(max(len(member.turns) for member in members)):
        for at, member in enumerate(members):
            if row < len(member.turns) and (state := member.turns[row].state) is not None:
                states.setdefault(state, [[] for _ in members])[at].append(row)
    return [{"state": state, "turns": turns} for state, turns in states.items()]


def _diverges(members: list[Episode]) -> int | None:
    """The first turn in which the members did not act alike."""
    for row in range(max(len(member.turns) for member in members)):
        if len({_action(member, row) for member in members}) > 1:
            return row
    return None


def _first_difference(first: Episode, other: Episode) -> int | None:
    longest = max(len(first.turns), len(other.turns))
    return next((row for row in range(longest) if _action(first, row) != _action(other, row)), None)


def _action(member: Episode, row: int) -> Any:
    return member.turns[row].action if row < len(member.turns) else None
