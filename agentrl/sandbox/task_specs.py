"""Sandbox spec of a task: the recipe's, with the task's changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from pydantic import ValidationError

from agentrl.types.errors import TaskError, nearest
from agentrl.types.sandbox import SandboxSpec
from agentrl.types.task import Task

JOINED = ("env", "files")
"""Keys that a task adds to; it replaces the others."""

KEPT = 256
"""Maximum of cached specs: the episodes of a group share theirs."""


class TaskSpecs:
    """Specs by task. Equal changes give the same spec: a pool reuses the sandbox of one task for another.

    Args:
        spec: the recipe's.
    """

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self._merged = lru_cache(KEPT)(self._merge)

    def of(self, task: Task) -> SandboxSpec:
        """Returns the spec of a task's sandboxes.

        Raises:
            TaskError: the task names a key that does not exist, or a value does not fit.
        """
        if not task.sandbox:
            return self.spec
        try:
            return self._merged(msgspec.json.encode(task.sandbox))
        except TaskError as error:
            raise TaskError(error.message, place=f"task {task.id!r}", remedy=error.remedy) from None

    def _merge(self, changes: bytes) -> SandboxSpec:
        return merged(self.spec, msgspec.json.decode(changes))


def merged(spec: SandboxSpec, changes: Mapping[str, Any]) -> SandboxSpec:
    """Returns a spec with some keys changed: `env` and `files` key by key, the others as a whole.

    Raises:
        TaskError: a key does not exist, or a value does not fit.
    """
    known = SandboxSpec.model_fields
    if (unknown := next((key for key in changes if key not in known), None)) is not None:
        raise TaskError(f"sandbox has no key {unknown!r}", remedy=nearest(unknown, known))
    joined = {key: {**getattr(spec, key), **changes[key]} for key in JOINED if isinstance(changes.get(key), dict)}
    own = {key: getattr(spec, key) for key in spec.model_fields_set}
    try:
        return SandboxSpec.model_validate({**own, **changes, **joined})
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise TaskError(f"sandbox.{at}: {first['msg']}, found {first['input']!r:.80}") from None
