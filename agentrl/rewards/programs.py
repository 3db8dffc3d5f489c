"""Programs that a task's own command runs, and that the image lacks: then nothing was measured."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agentrl.types.parts.content import text_of
from agentrl.types.sandbox import ExecResult, SandboxImageUnusable, SandboxSpec
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.types.sandbox import Sandbox

NOT_STARTED = (126, 127)
"""Exit codes of shells: a program cannot be run, or is not there."""

_FIRST = re.compile(
    r"(?:^|[;&|(\n])\s*(?:(?:if|while|then|else|do|exec|time|!)\s+)*(?:\w+=\S*\s+)*([A-Za-z][\w+-]*)(?=[\s;&|)]|$)"
)
_KNOWN: dict[tuple[str | None, str | None, str], bool] = {}
"""True if an image has a program, by image, root file system and program."""


def called_in(command: str) -> list[str]:
    """Returns the program names of a shell command, without those given by a path."""
    return list(dict.fromkeys(_FIRST.findall(command)))


async def check_started(
    result: ExecResult, command: str, task: Task, spec: SandboxSpec, untouched: Callable[[], Awaitable[Sandbox]]
) -> None:
    """After exit code 126 or 127, checks that the untouched image has the programs of the command.

    The output is ignored: the agent's programs may have written it. So are programs with a path, or named by the
    instruction: the agent may have been asked to provide them.

    Args:
        spec: of its sandbox. Each program is looked up once per image.
        untouched: gives a sandbox of that spec with the image's programs.

    Raises:
        SandboxImageUnusable: the image lacks a program. The episode was not measured.
    """
    if result.code not in NOT_STARTED:
        return
    said = "\n".join(text_of(message.get("content") or "") for message in task.instruction)
    for program in called_in(command):
        owed = re.search(rf"(?<![\w.-]){re.escape(program)}(?![\w-])", said)
        if not owed and not await _has(program, spec, untouched):
            raise SandboxImageUnusable(
                f"the image has no {program}, which {command[:80]!r} runs",
                place=f"task {task.id}",
                remedy="add it to the image of sandbox.spec, or change the task",
            )


async def _has(program: str, spec: SandboxSpec, untouched: Callable[[], Awaitable[Sandbox]]) -> bool:
    key = spec.image, spec.rootfs, program
    if key not in _KNOWN:
        found = await (await untouched()).exec(["bash", "-c", f"command -v {program}"], cwd="/", timeout_s=30)
        _KNOWN[key] = found.code != 1
    return _KNOWN[key]
