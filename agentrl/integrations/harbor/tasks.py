"""Task source of Harbor task folders: `tasks: {source: harbor, args: {path: ./tasks}}`."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import io
import logging
import random
import tarfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.integrations.harbor.config import TaskToml, network_of, read_task_toml, resolved, unsupported
from agentrl.integrations.harbor.dockerfile import LEAVE_OUT, Plan, plan_of, root_of, roots_in
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import NetworkAllow
from agentrl.types.task import Message, Task

_log = logging.getLogger(__name__)

OWN = ("/logs", "/solution", "/tests")
"""Folders used by the format."""


def tasks(
    path: str,
    base: Path,
    only: Sequence[str] = ("*",),
    image: str | None = None,
    network: Any = "task",
    resources: bool = True,
    skip: bool = False,
    excluded_by: Callable[[str], str | None] = lambda id: None,
    skipped: dict[str, str] | None = None,
) -> Iterator[Task]:
    """Yields the task folders in a folder, at any depth; or the folder itself if it is one.

    Args:
        path: path relative to the recipe.
        only: patterns of ids; a task is included if one matches.
        image: image of the sandboxes; default: the task's (`docker_image`), or the recipe's.
        network: `task`: the task's network, or the value of `sandbox.spec.network` for all tasks.
        resources: false: ignores `cpus` and `memory_mb` of tasks and uses the recipe's spec.
        skip: skips tasks with unsupported features instead of refusing them; and, with a warning, those with a broken
            `task.toml` or a missing file.
        skipped: filled with the reason for each skipped task.
        excluded_by: `TaskSettings.excluded_by`: the files of excluded tasks are not read.

    Raises:
        TaskError: no task was found; a file is missing or broken; or a task needs an unsupported feature.
    """
    root = (base / path).resolve()
    folders = [found.parent for found in sorted(root.rglob("task.toml"))] if root.is_dir() else []
    if not folders:
        raise TaskError(f"no folder in {root} holds a task.toml", place="tasks.args.path", remedy="give Harbor tasks")
    for folder in folders:
        id = folder.name if folder == root else ".".join(folder.relative_to(root).parts)
        if excluded_by(id) is not None or not any(fnmatch.fnmatchcase(id, pattern) for pattern in only):
            continue
        try:
            yield _task(id, folder, image, network, resources)
        except TaskError as error:
            if not skip:
                raise
            if skipped is not None:
                skipped[id] = error.message
            if not isinstance(error, Unsupported):
                _log.warning("the task %s is left out (tasks.args.skip): %s", id, error)


class Unsupported(TaskError):
    """A task needs an unsupported feature."""


def plan_for(folder: Path) -> Plan:
    """Returns the plan of a task's sandbox.

    Raises:
        TaskError: the Dockerfile cannot be replayed.
    """
    dockerfile = folder / "environment" / "Dockerfile"
    return plan_of(dockerfile) if dockerfile.is_file() else Plan()


def _task(id: str, folder: Path, image: str | None, network: Any, resources: bool) -> Task:
    config = read_task_toml(folder)
    for file in ("instruction.md", "tests/test.sh"):
        if not (folder / file).is_file() and not config.steps:
            raise TaskError(f"there is no {file}", place=str(folder), remedy="add it, or exclude the task")
    resolved(config.verifier.env, f"{folder}/task.toml: verifier.env")  # fail now, not after the episode
    if (what := unsupported(folder, config)) is not None:
        raise Unsupported(f"it asks for {what}", place=str(folder), remedy="exclude it, or set tasks.args.skip: true")
    try:
        plan = plan_for(folder)
        spec = _spec(folder, config, plan, image, network, resources)
    except (TaskError, ValueError) as error:
        if isinstance(error, TaskError):
            raise Unsupported(error.message, place=error.place, remedy=error.remedy) from None
        remedy = "set one network for all tasks (tasks.args.network), or leave the task out (tasks.args.skip: true)"
        raise Unsupported(str(error), place=str(folder), remedy=remedy) from None
    instruction = "\n".join(_shown((folder / "instruction.md").read_text(errors="replace").splitlines()))
    about = {"folder": str(folder), "digest": digest(folder), "left_to_the_image": plan.left}
    return Task.of(id, instruction.strip(), sandbox=spec, harbor=about)


def _spec(
    folder: Path, config: TaskToml, plan: Plan, image: str | None, network: Any, resources: bool
) -> dict[str, Any]:
    environment = config.environment
    workdir = environment.workdir or plan.workdir or "/app"
    texts = ("instruction.md", "tests/test.sh", "solution/solve.sh")
    named = set().union(*(roots_in((folder / each).read_text(errors="replace")) for each in texts
                          if (folder / each).is_file()))  # fmt: skip
    spec: dict[str, Any] = {
        "workdir": workdir,
        "writable": sorted({*plan.writable, *named, *OWN} - {workdir}),
        "env": plan.env | resolved(environment.env, f"{folder}/task.toml: environment.env"),
        "network": network_of(config) if network == "task" else network,
    }
    if (root := root_of(workdir)) not in ("", workdir):  # a folder filled by a command must not also be the home
        spec["env"] = {"HOME": root} | spec["env"]
    if isinstance(spec["network"], dict):
        NetworkAllow.model_validate(spec["network"])
    if (chosen := image or environment.docker_image) is not None:
        spec["image"] = chosen
    if plan.only_image and (chosen is None or chosen.startswith("agentrl/")):
        place, where = plan.only_image[0]
        remedy = f"build an image of the folder and name it (tasks.args.image), or {LEAVE_OUT}"
        raise TaskError(f"copies to {where}, which only an image can hold", place=place, remedy=remedy)
    if resources:
        spec |= {"cpu": environment.cpus} if environment.cpus else {}
        spec |= {"memory_mb": environment.memory_in_mb} if environment.memory_in_mb else {}
    return spec


def _shown(lines: list[str]) -> Iterator[str]:
    """Yields the instruction without leading canary lines."""
    head = True
    for line in lines:
        head = head and (not line.strip() or ("canary" in line.lower() and line.lstrip().startswith(("#", "<!--"))))
        if not head:
            yield line


def digest(folder: Path) -> str:
    """Returns a hash of a task folder's files, to record the version of a run's tasks."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found.update(f"{path.relative_to(folder)}\0-> {path.readlink()}\0".encode())
        elif path.is_file():
            found.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Runs `solution/solve.sh` with the `shell` tool. Tasks without a solution stay unsolved."""
    folder = Path(task.data["harbor"]["folder"])
    if (folder / "solution" / "solve.sh").is_file():
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w:gz") as archive:
            archive.add(folder / "solution", arcname=".")
        env = resolved(read_task_toml(folder).solution.env, f"{folder}/task.toml: solution.env")
        words = " ".join(f"{name}='{value}'" for name, value in env.items())
        yield Say(
            calls=[("shell", {"command": f"python3 -m base64 -d <<'END' | tar -xz -C /solution\n"
                    f"{base64.encodebytes(held.getvalue()).decode()}END\n{words} bash /solution/solve.sh"})]
        )  # fmt: skip
    yield Say("Done.")
