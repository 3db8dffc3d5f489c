"""Environments of other frameworks in separate processes: `tasks: {source: guest, args: {kind: inspect, ...}}`."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.types.errors import TaskError, told
from agentrl.types.paths import all_beside, data_path
from agentrl.types.task import Message, Task

KINDS = ("inspect", "openenv", "ors", "verifiers")
LIST_S = 600.0
"""Timeout for listing the tasks, from start to exit of the guest process."""


def tasks(
    kind: str, base: Path, spec: dict[str, Any] | None = None, python: str | None = None, n: int | None = None
) -> Iterator[Task]:
    """Yields the tasks of another framework's environment. `agent: {use: guest}` plays them.

    Args:
        kind: inspect, openenv, ors or verifiers.
        spec: environment, in the format of its kind (docs/adapters.md).
        python: interpreter with the framework installed; default: this one.
        n: maximum number of tasks.

    Raises:
        TaskError: the kind or interpreter does not exist, the package is missing there, or the environment cannot be
            used; the message comes from the guest.
    """
    if kind not in KINDS:
        raise TaskError(f"there is no kind {kind!r}", place="tasks.args.kind", remedy=f"take one of {', '.join(KINDS)}")
    command = [_interpreter(python, base), str(data_path("tools", "guests", "guest.py"))]
    place = f"tasks.args (kind: {kind})"
    asked = json.dumps(all_beside(_with_folders(spec or {}, place), base))
    few = [] if n is None else [str(n)]
    try:
        listed = subprocess.run(
            [*command, "tasks", kind, asked, *few],
            stdin=subprocess.DEVNULL, capture_output=True, cwd=base, timeout=LIST_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        last = told(error.stderr or b"") or "none"
        message = f"the list of tasks took more than {LIST_S:g} s. Its last lines: {last}"
        raise TaskError(message, place=place, remedy="args.n takes the first tasks only") from None
    if listed.returncode:
        said = told(listed.stderr) or f"exit code {listed.returncode}"
        raise TaskError(said, place=place, remedy=_REMEDY)
    for index, row in enumerate(map(json.loads, listed.stdout.splitlines())):
        guest = {"command": command, "kind": kind, "spec": asked, "index": index}
        if row.get("declares"):
            guest["declares"] = row["declares"]
        yield Task.of(row["id"], row["instruction"], **{**row.get("data", {}), "guest": guest})


def _with_folders(spec: dict[str, Any], place: str) -> dict[str, Any]:
    """Returns the spec with `path` as a list of folders; one may be given as a text.

    Raises:
        TaskError: it is neither.
    """
    path = spec.get("path", [])
    path = [path] if isinstance(path, str) else list(path) if isinstance(path, tuple) else path
    if not isinstance(path, list) or not all(isinstance(each, str) for each in path):
        raise TaskError(
            f"spec.path is {path!r:.80}", place=place, remedy="give a list of folders with Python modules: [./src]"
        )
    return {**spec, **({"path": path} if path else {})}


_REMEDY = "docs/adapters.md says what each kind needs"


def _interpreter(python: str | None, base: Path) -> str:
    if python is None:
        return sys.executable
    path = base / python  # not resolved: Python finds a virtual environment by the link
    if not path.exists():
        remedy = f"python3 -m venv {path.parent.parent}, and install the framework there"
        raise TaskError(f"there is no interpreter {path}", place="tasks.args.python", remedy=remedy)
    return str(path.absolute())


def guest(info: dict[str, Any], *, key: str = "reward") -> float:
    """Returns the other framework's reward of the episode. If a limit ended the episode: the rewards so far of OpenEnv
    and the Open Reward Standard, which reward each step; 0 for the others.

    Args:
        key: name of the reward.
    """
    return float(info.get("guest", {}).get(key, 0.0))


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Replies with the task's `answer`, if its data set has one."""
    answer = task.data.get("answer", "")
    yield Say(answer if isinstance(answer, str) else str(answer[0]) if answer else "")
