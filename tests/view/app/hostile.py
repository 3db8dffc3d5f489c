"""A run in which every text that somebody else may have written would act, if it could."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentrl.store import RunDir
from agentrl.types.episode import Branch, Context, Episode, ErrorRecord, GateVerdict
from tests.store.make import make_episode
from tests.view.app.everything import EVIL

_KEPT = {"status", "kind", "outcome", "reason", "finish", "split", "parent", "blob", "type"}
"""Fields whose values are words of ours, by which the record is read."""
_ROLES = ("system", "user", "assistant", "tool")
GROUP = f"train/{EVIL}"


def make_hostile(path: Path) -> Path:
    """Hostile names of recipe, metrics, stages, tools and components; hostile texts wherever a record has a text."""
    recipe = {"name": EVIL, EVIL: [EVIL], "credit": {"use": EVIL}}
    info = {"recipe": recipe, "command": EVIL, "argv": [EVIL] * 3, "versions": {EVIL: EVIL}, "tools": [EVIL]}
    with RunDir.create(path, info) as run:
        for member in range(3):
            failed = member == 2
            episode = hostile(_episode(member, failed=failed))
            run.add(episode)
            if not failed:
                run.add_credit(episode.id, EVIL, [0.5, -0.5, 0.1], {EVIL: [0.5, -0.5, 0.1]})
        for iteration in range(3):
            run.add_metrics({"iteration": iteration, "stage": EVIL, EVIL: iteration / 3, "success": iteration / 3})
        for final in (False, True):
            place = {"stage": EVIL, "episode": EVIL, "place": EVIL, "final": final}
            run.add_failure({"kind": EVIL, "message": EVIL, **place})
    return path


def _episode(member: int, *, failed: bool) -> Episode:
    gate = GateVerdict(on="format", value=0.0, threshold=0.5, strict=False, open=False, shuts=["found"])
    critic = Context(role="critic", prompt=[{"role": "user", "content": "Judge."}], policy="frozen", version=3)
    rewritten = Branch(turn=1, reason="rewrite", at_token=4, messages=[{"role": "user", "content": "Once more."}])
    error = ErrorRecord(kind=EVIL, message="gone", stage="tools", place="a.py:1", traceback="Traceback", cause="disk")
    made = make_episode(f"#{member}", seed=member, turns=3, status="infra_error" if failed else "done", group="")
    shown = {"error": error} if failed else {"notes": {"found": "7 of 10."}, "gates": [gate]}
    replace = msgspec.structs.replace
    first, second, last = made.turns
    raised = replace(first.calls[0], outcome="raised", raised="ValueError: no at task.py:3 in f")
    turns = [replace(first, calls=[raised]), second, replace(last, context="critic", agent="critic")]
    return replace(made, turns=turns, contexts={"critic": critic}, branches=[rewritten], info={"seen": "it"}, **shown)


def hostile(episode: Episode) -> Episode:
    """Puts hostile text before every text of an episode, names of its tools, components and contexts included."""
    return msgspec.convert(_evil(msgspec.to_builtins(episode)), Episode)


def _evil(value: Any, name: str = "") -> Any:
    if name in _KEPT or (name == "role" and value in _ROLES):
        return value
    if isinstance(value, str):
        return value if value == "main" else name_of(value) if name in ("id", "group_id") else EVIL + value
    if isinstance(value, list):
        return [_evil(each, name) for each in value]
    if isinstance(value, dict) and name in ("components", "rewards", "notes", "contexts", "arguments", "data", "info"):
        return {EVIL + key: _evil(each) for key, each in value.items()}
    if isinstance(value, dict):
        return {key: _evil(each, key) for key, each in value.items()}
    return value


def name_of(id: str) -> str:
    """A hostile id."""
    return f"{GROUP}{id}"
