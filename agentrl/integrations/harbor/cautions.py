"""Warnings before a run on Harbor tasks that may fail without an image."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from agentrl.config.recipe import Recipe
from agentrl.config.rewards import RewardSettings
from agentrl.integrations.harbor.programs import lacking
from agentrl.integrations.harbor.verifier import INSTALLERS
from agentrl.types.task import Task


def cautions(recipe: Recipe, tasks: Iterable[Task]) -> Iterator[str]:
    """Yields warnings on Dockerfile commands that are not run and on verifier programs missing without an image."""
    left: dict[str, list[str]] = defaultdict(list)
    missing: dict[str, list[str]] = defaultdict(list)
    replayed: list[str] = []
    for task in tasks:
        about = task.data.get("harbor")
        if not isinstance(about, Mapping):
            continue
        for command in about.get("left_to_the_image") or ():
            left[str(command)].append(task.id)
        if about.get("replayed"):
            replayed.append(task.id)
        spec = recipe.sandbox.spec
        image = (task.sandbox or {}).get("image") or spec.image
        if recipe.sandbox.use == "namespace" and image is None:
            for program in _lacking(Path(about["folder"])) - _installers(recipe.rewards):
                missing[program].append(task.id)
    if replayed:
        yield f"no container engine answers: Dockerfiles are replayed in the sandbox, not built ({_some(replayed)})"
    for program, ids in sorted(missing.items()):
        yield (
            f"test.sh of {_some(ids)} calls {program}, which this machine does not have, and the sandbox has no "
            "image: name one that has it (tasks.args.image)"
        )
    for command, ids in left.items():
        yield f"left to the image, and not run: {' '.join(command.split())[:120]} ({_some(ids)})"


def _lacking(folder: Path) -> set[str]:
    """Returns the programs that this machine lacks and a task's tests call, or those of its steps."""
    scripts = [folder / "tests" / "test.sh", *sorted(folder.glob("steps/*/tests/test.sh"))]
    return {program for script in scripts if script.is_file() for program in lacking(script)}


def _installers(rewards: Mapping[str, RewardSettings]) -> set[str]:
    """Returns the programs that the verifier replaces by stubs."""
    offline = any(each.use == "harbor" and each.settings.get("offline") for each in rewards.values())
    return {*INSTALLERS, "uv", "uvx", "pytest"} if offline else set()


def _some(ids: list[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more tasks" if len(ids) > 3 else "")
