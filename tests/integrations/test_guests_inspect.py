"""inspect_ai as a guest: its list of tasks, and what it cannot load."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.integrations import guests
from agentrl.types.errors import TaskError
from agentrl.types.task import Task
from tests.integrations.guested import packages, tasks

INSPECT = {
    "inspect_ai/__init__.py": "",
    "inspect_ai/_util/__init__.py": "",
    "inspect_ai/_util/error.py": """\
class PrerequisiteError(Exception):
    def __init__(self, message):
        self.message = message
""",
    "inspect_ai/_eval/__init__.py": "",
    "inspect_ai/_eval/loader.py": """\
import time
from types import SimpleNamespace
from inspect_ai._util.error import PrerequisiteError

def load_tasks(names, args):
    if names[0] == "unknown.py@one":
        raise PrerequisiteError("Task named 'one' not found.")
    if names[0] == "away.py@one":
        open("away.py")
    print("downloading " * 20_000)
    time.sleep(args.get("sleep_s", 0))
    sample = SimpleNamespace(input="1+1?", target="2", id=1)
    return [SimpleNamespace(dataset=[sample])]
""",
}
OPENAI = {"openai.py": ""}


def of_inspect(folder: Path, files: dict[str, str], **spec: Any) -> list[Task]:
    """The tasks, listed by a Python that has no package but these."""
    packages(folder, files | {"python": f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n'})
    (folder / "python").chmod(0o755)
    return tasks(folder, kind="inspect", python="./python", spec={"path": ["./"], **spec})


@pytest.mark.timeout(60)
def test_a_framework_may_print_more_than_a_pipe_holds(tmp_path: Path) -> None:
    listed = of_inspect(tmp_path, INSPECT | OPENAI, task="sums.py@add")
    assert [task.id for task in listed] == ["add-1"]


@pytest.mark.timeout(60)
def test_a_list_of_tasks_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "LIST_S", 2.0)
    with pytest.raises(TaskError, match=r"took more than 2 s. Its last lines: .*downloading"):
        of_inspect(tmp_path, INSPECT | OPENAI, task="sums.py@add", args={"sleep_s": 50})


@pytest.mark.parametrize(
    ("files", "task", "expected"),
    [
        ({}, "sums.py@add", "inspect_ai is not installed there: .* -m pip install inspect-ai openai"),
        (INSPECT, "sums.py@add", "openai is not installed there: .* -m pip install openai"),
        (INSPECT | OPENAI, "inspect_evals/sums", "inspect_evals is not installed there: .* pip install inspect-evals"),
        (INSPECT | OPENAI, "unknown.py@one", "^[^\n]*unknown.py@one cannot be loaded: Task named 'one' not found"),
        (
            INSPECT | OPENAI,
            "away.py@one",
            "^[^\n]*away.py@one cannot be loaded: .*No such file",
        ),
    ],
    ids=["without inspect_ai", "without openai", "without inspect-evals", "unknown task", "unknown file"],
)
def test_what_inspect_cannot_load(tmp_path: Path, files: dict[str, str], task: str, expected: str) -> None:
    with pytest.raises(TaskError, match=expected):
        of_inspect(tmp_path, files, task=task)
