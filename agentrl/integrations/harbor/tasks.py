"""Task source of Harbor task folders: `tasks: {source: harbor, args: {path: ./tasks}}`."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import io
import logging
import os
import random
import tarfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.engines.scripted import Say
from agentrl.integrations.harbor.build import build as build_image
from agentrl.integrations.harbor.build import engine_api
from agentrl.integrations.harbor.compose import compose_env, compose_path
from agentrl.integrations.harbor.config import (
    EnvironmentTable,
    TaskToml,
    network_of,
    read_task_toml,
    resolved,
    unsupported,
)
from agentrl.integrations.harbor.dockerfile import LEAVE_OUT, Plan, last_workdir, plan_of, root_of, roots_in
from agentrl.integrations.harbor.steps import steps_of
from agentrl.types.errors import TaskError
from agentrl.types.paths import neighbours
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
    build: bool | None = None,
    bases: Mapping[str, str] | None = None,
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
        build: true: a container engine builds the Dockerfiles; false: they are replayed in the sandbox; default: built
            if an engine answers and no `image` is given.
        bases: images of the engine to take in place of those that `FROM` names: `{"python:3.11-slim": agentrl/swe}`.
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
        raise _none_in(root)
    builder = _builder(build, image, bases or {})
    for folder in folders:
        id = folder.name if folder == root else ".".join(folder.relative_to(root).parts)
        if excluded_by(id) is not None or not any(fnmatch.fnmatchcase(id, pattern) for pattern in only):
            continue
        try:
            yield _task(id, folder, image, network, resources, builder)
        except TaskError as error:
            if not skip:
                raise
            if skipped is not None:
                skipped[id] = error.message
            if not isinstance(error, Unsupported):
                _log.warning("the task %s is left out (tasks.args.skip): %s", id, error)


def _require_bash(file: Path) -> None:
    """Raises a TaskError for a script with line ends of Windows, with which no command of it works."""
    if file.is_file() and not file.is_symlink():
        with file.open("rb") as script:
            if script.readline().endswith(b"\r\n"):
                remedy = f"sed -i 's/\\r$//' {file}; or leave the task out (tasks.exclude)"
                raise TaskError(f"{file.name} has line ends of Windows (CRLF)", place=str(file), remedy=remedy)


def _none_in(root: Path) -> TaskError:
    if not root.is_dir():
        remedy = neighbours(root) or "it is relative to the folder of the recipe"
        return TaskError(f"there is no folder {root}", place="tasks.args.path", remedy=remedy)
    remedy = "give Harbor tasks"
    if (older := next(iter(sorted(root.rglob("task.yaml"))), None)) is not None:
        command = f"harbor tasks migrate -i {root} -o FOLDER"
        remedy = f"{older.parent.name} is a task of Terminal-Bench 1 (task.yaml), which Harbor converts: {command}"
    return TaskError(f"no folder in {root} holds a task.toml", place="tasks.args.path", remedy=remedy)


class Unsupported(TaskError):
    """A task needs an unsupported feature."""


def plan_for(folder: Path) -> Plan:
    """Returns the plan of a task's sandbox.

    Raises:
        TaskError: the Dockerfile cannot be replayed.
    """
    dockerfile = folder / "environment" / "Dockerfile"
    return plan_of(dockerfile) if dockerfile.is_file() else Plan()


Builder = Callable[[str, Path, float], str]
"""Builds the image of a task: its id, the folder of its Dockerfile, and the time limit in seconds."""


def _builder(build: bool | None, image: str | None, bases: Mapping[str, str]) -> Builder | None:
    """Returns what builds Dockerfiles; None: they are replayed.

    Raises:
        TaskError: `build` is true, and no container engine answers, or `image` is given.
    """
    if build and image is not None:
        raise TaskError("takes image or build, not both", place="tasks.args", remedy="drop one")
    api = engine_api(os.environ.get("DOCKER_HOST")) if build or (build is None and image is None) else None
    if build and api is None:
        remedy = "start one (agentrl doctor), set DOCKER_HOST, or replay the Dockerfiles (tasks.args.build: false)"
        raise TaskError("no container engine answers", place="tasks.args.build", remedy=remedy)
    return None if api is None else lambda id, folder, limit_s: build_image(folder, id, api, bases, limit_s)


def _task(id: str, folder: Path, image: str | None, network: Any, resources: bool, builder: Builder | None) -> Task:
    config = read_task_toml(folder)
    for file in ("instruction.md", "tests/test.sh"):
        if not (folder / file).is_file() and not config.steps:
            raise TaskError(f"there is no {file}", place=str(folder), remedy="add it, or exclude the task")
    for script in sorted(folder.rglob("*.sh")):
        _require_bash(script)
    resolved(config.verifier.env, f"{folder}/task.toml: verifier.env")  # fail now, not after the episode
    steps = steps_of(folder, config)
    if (what := unsupported(folder, config)) is not None:
        raise Unsupported(f"it asks for {what}", place=str(folder), remedy="exclude it, or set tasks.args.skip: true")
    try:
        built = _built(id, folder, config, builder)
        as_is = built is not None or (image is None and config.environment.docker_image is not None)
        plan = as_is_plan(folder) if as_is else plan_for(folder)
        spec = _spec(folder, config, plan, built or image, network, resources)
        judge = _built_verifier(id, folder, config, builder, spec)
    except (TaskError, ValueError) as error:
        if isinstance(error, TaskError):
            raise Unsupported(error.message, place=error.place, remedy=error.remedy) from None
        remedy = "set one network for all tasks (tasks.args.network), or leave the task out (tasks.args.skip: true)"
        raise Unsupported(str(error), place=str(folder), remedy=remedy) from None
    first = steps[0].instruction if steps else (folder / "instruction.md").read_text("utf-8-sig", errors="replace")
    instruction = "\n".join(_shown(first.splitlines()))
    about: dict[str, Any] = {"folder": str(folder), "digest": digest(folder), "left_to_the_image": plan.left}
    if judge is not None:
        about["verifier"] = judge
    if as_is:
        about["as_is"] = True
    elif "image" not in spec and (folder / "environment" / "Dockerfile").is_file():
        about["replayed"] = True
    return Task.of(id, instruction.strip(), sandbox=spec, harbor=about)


def _built(id: str, folder: Path, config: TaskToml, builder: Builder | None) -> str | None:
    """Returns the image that holds what the task's Dockerfile does; None: it is replayed."""
    if builder is None or not (folder / "environment" / "Dockerfile").is_file():
        return None
    if config.environment.docker_image is not None:
        return None
    return builder(id, folder / "environment", config.environment.build_timeout_sec)


def _built_verifier(
    id: str, folder: Path, config: TaskToml, builder: Builder | None, spec: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Returns what the sandbox of a verifier of its own has in place of the task's spec; None: the task has none.

    Raises:
        Unsupported: no container engine builds it.
    """
    dockerfile = folder / "tests" / "Dockerfile"
    if config.verifier.environment_mode != "separate" or not dockerfile.is_file():
        return None
    if builder is None:
        remedy = "have a container engine build it (tasks.args.build: true, without tasks.args.image), or exclude it"
        raise Unsupported("it asks for a verifier that is built (tests/Dockerfile)", place=str(folder), remedy=remedy)
    own = config.verifier.environment or EnvironmentTable()
    workdir = own.workdir or last_workdir(dockerfile.read_text(errors="replace")) or spec["workdir"]
    return {
        "image": builder(f"{id}-verifier", folder / "tests", own.build_timeout_sec),
        "env": resolved(own.env, f"{folder}/task.toml: verifier.environment.env"),
        "workdir": workdir,
        "writable": sorted({*spec["writable"], spec["workdir"]} - {workdir}),  # the artifacts come to their places
    }


def as_is_plan(folder: Path) -> Plan:
    """Returns the plan of a sandbox whose image holds what the Dockerfile does."""
    if not (folder / "environment" / "Dockerfile").is_file():
        return Plan()
    try:
        plan = plan_for(folder)
    except TaskError:  # what cannot be replayed can be built
        plan = Plan(workdir=last_workdir((folder / "environment" / "Dockerfile").read_text(errors="replace")))
    return Plan(image=plan.image, workdir=plan.workdir, writable=plan.writable)


def _spec(
    folder: Path, config: TaskToml, plan: Plan, image: str | None, network: Any, resources: bool
) -> dict[str, Any]:
    environment = config.environment
    workdir = environment.workdir or plan.workdir or "/app"
    texts = ["instruction.md", "tests/test.sh", "solution/solve.sh"]
    texts += [f"steps/{step.name}/{each}" for step in config.steps for each in [*texts, "workdir/setup.sh"]]
    named = set().union(*(roots_in((folder / each).read_text(errors="replace")) for each in texts
                          if (folder / each).is_file()))  # fmt: skip
    spec: dict[str, Any] = {
        "workdir": workdir,
        "writable": sorted({*plan.writable, *named, *OWN} - {workdir}),
        "env": plan.env
        | resolved(compose_env(folder), str(compose_path(folder)))
        | resolved(environment.env, f"{folder}/task.toml: environment.env"),
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
    """Runs `solution/solve.sh`, of each step, with the `shell` tool. Tasks without a solution stay unsolved."""
    folder = Path(task.data["harbor"]["folder"])
    config = read_task_toml(folder)
    steps = steps_of(folder, config)
    solutions = [step.solution for step in steps] if steps else [folder / "solution"]
    for solution in solutions:
        if solution is not None and (solution / "solve.sh").is_file():
            yield _solved(solution, resolved(config.solution.env, f"{folder}/task.toml: solution.env"))
        yield Say("Done.")


def _solved(solution: Path, env: Mapping[str, str]) -> Say:
    """Returns the call that puts a solution into the sandbox and runs it."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        archive.add(solution, arcname=".")
    words = " ".join(f"{name}='{value}'" for name, value in env.items())
    return Say(
        calls=[("shell", {"command": f"python3 -m base64 -d <<'END' | tar -xz -C /solution\n"
                f"{base64.encodebytes(held.getvalue()).decode()}END\n{words} bash /solution/solve.sh"})]
    )  # fmt: skip
