"""The levels of a repair, and immediate rewards of its turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl import Say, Task
from agentrl.registry.references import load_object
from agentrl.rewards import Scored, reward
from agentrl.types.episode import Episode, Turn
from agentrl.types.sandbox import Sandbox

MUTANTS = Path(__file__).parents[2] / "swe-inject"
broken = load_object("./task.py:broken", MUTANTS)
restored = load_object("./task.py:restored", MUTANTS)

LEVELS = {"not submitted": 0.0, "empty patch": 0.1, "patch that fails": 0.3, "repair": 1.0}


@reward(source="G-RA, arXiv:2508.10548", costs=["sandbox"], verifier=True, bounds=(0, 1))
async def outcome(task: Task, episode: Episode, sandbox: Sandbox) -> Scored:
    """The level of an episode: not submitted < empty patch < patch that fails < repair, as 0, 0.1, 0.3 and 1."""
    if episode.stop != "answer":
        return _at("not submitted")
    row = task.data["bug"]
    try:
        left = await sandbox.read(row["path"], limit=1 << 20)
    except OSError:
        return _at("patch that fails")
    if left == broken(row).encode():
        return _at("empty patch")
    found: Any = await restored(task, sandbox)
    return _at("repair" if found == 1.0 else "patch that fails")


def _at(level: str) -> Scored:
    return Scored(LEVELS[level], level)


def action(turn: Turn) -> float:
    """1 for a turn whose calls all succeed, -1 for one with a call that cannot be read or fails, else 0."""
    if not turn.valid or any(call.outcome != "ok" for call in turn.calls):
        return -1.0
    return float(bool(turn.calls))


# --- scripts --------------------------------------------------------------------------------------------------------


def tinker(task: Task, rng: Any) -> Any:
    """Looks, or appends a comment, or writes what is no command; and mostly says that it is done."""
    path = task.data["bug"]["path"]
    commands = ["pwd", "ls", f"echo '#' >> {path}", f"echo '#' >> {path}", "cd nowhere"]
    for _ in range(rng.randint(0, 2)):
        yield Say(calls=[("shell", {"command": rng.choice(commands)})])
    yield Say("Done." if rng.random() < 0.7 else "<shell>ls")
