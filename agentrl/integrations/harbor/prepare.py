"""Preparation of the sandbox of a Harbor task: its Dockerfile is replayed, unless the image holds what it does."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path, PurePosixPath

from agentrl.integrations.harbor.dockerfile import Copy, RunStep
from agentrl.integrations.harbor.inside import require_own_files
from agentrl.integrations.harbor.tasks import plan_for
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import Sandbox, SandboxStartFailed
from agentrl.types.task import Task

STEP_S = 300.0
"""Timeout of one command of a Dockerfile."""


def folder_of(task: Task) -> Path:
    """Returns the task's folder.

    Raises:
        TaskError: the task is not from `harbor`, or its folder is missing or has files that lead out of it.
    """
    about = task.data.get("harbor")
    if not isinstance(about, dict):
        remedy = "tasks: {source: harbor, args: {path: ...}}"
        raise TaskError("it is no Harbor task", place=f"task {task.id!r}", remedy=remedy)
    folder = Path(about["folder"])
    if not (folder / "task.toml").is_file():
        raise TaskError(f"its folder {folder} is gone", place=f"task {task.id!r}", remedy="put it back")
    require_own_files(folder)
    return folder


async def prepare(task: Task, sandbox: Sandbox) -> None:
    """Prepares a fresh sandbox for the task.

    Raises:
        SandboxStartFailed: a command of the Dockerfile or a write failed.
    """
    folder = folder_of(task)
    if task.data["harbor"].get("as_is"):
        return
    plan = plan_for(folder)
    environment = folder / "environment"
    steps = plan.steps
    if environment.is_dir() and not (environment / "Dockerfile").is_file():
        steps = [Copy((environment,), sandbox.spec.workdir, into=True)]
    for step in steps:
        try:
            await (_copy(sandbox, step) if isinstance(step, Copy) else _run(sandbox, step, folder))
        except OSError as error:
            raise SandboxStartFailed(f"{step}: {error}", place=str(environment / "Dockerfile")) from error


async def _copy(sandbox: Sandbox, step: Copy) -> None:
    into = step.into or (await sandbox.exec(["test", "-d", step.target])).ok
    for source in step.sources:
        if source.is_dir() or into:
            await sandbox.put(source, step.target)
        else:
            await _put_as(sandbox, source, step.target)
    if step.mode is not None:
        await sandbox.exec(["chmod", "-R", step.mode, step.target])


async def _put_as(sandbox: Sandbox, source: Path, target: str) -> None:
    """Puts a file under another name; creates its folder."""
    path = PurePosixPath(target)
    with tempfile.TemporaryDirectory() as made:
        shutil.copy2(source, Path(made, path.name))
        await sandbox.put(Path(made), str(path.parent))


async def _run(sandbox: Sandbox, step: RunStep, folder: Path) -> None:
    await sandbox.exec(["mkdir", "-p", step.folder])
    result = await sandbox.exec([*step.shell, step.command], cwd=step.folder, timeout_s=STEP_S)
    if not result.ok:
        raise SandboxStartFailed(
            f"RUN {step.command[:200]} ended with {result.outcome}, code {result.code}: {result.text[-400:].strip()}",
            place=str(folder / "environment" / "Dockerfile"),
            remedy="use an image in which it is done (tasks.args.image), or exclude the task",
        )
