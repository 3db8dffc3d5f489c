"""What the tests of guests share: lists of tasks, modules that stand for a framework, one episode against a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.types.task import Task

GUESTS = Path(__file__).parents[2] / ".venv-guests"
"""A folder with a virtual environment for each framework."""

needs_guests = pytest.mark.family("guests")
SERVED = """\
name: served
tasks: {source: guest, args: {kind: KIND, spec: {url: "URL", env: NAME, path: [./]}}}
agent: {use: guest, max_turns: 2, format: hermes}
rewards: {guest: {}}
scripts: {say: ./scripts.py:say}
"""
SAYS = """\
from agentrl import Say

def say(task, rng):
    for _ in range(2):
        yield Say(calls=[("say", {})])
"""


def tasks(folder: Path, **args: Any) -> list[Task]:
    return load_tasks(TaskSettings(source="guest", args=args), folder, seed=0).tasks


def packages(folder: Path, files: dict[str, str]) -> Path:
    """Modules that stand for a framework."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def served(folder: Path, kind: str, url: str, name: str, modules: dict[str, str]) -> Any:
    """One episode against a server of this kind."""
    packages(folder, modules | {"scripts.py": SAYS})
    recipe = SERVED.replace("KIND", kind).replace("URL", url).replace("NAME", name)
    (folder / "recipe.yaml").write_text(recipe)
    overrides = {"limits.service_failures": 9, "limits.user_errors": 9, "limits.retries": 0}
    return agentrl.rollout(folder, 1, script="say", out=folder / "run", overrides=overrides, reporters=())
