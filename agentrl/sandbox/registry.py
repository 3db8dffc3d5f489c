"""Registry of the sandbox backends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.registry.registry import Registry, any_class
from agentrl.types.sandbox import Backend

BACKENDS: Registry[type] = Registry(
    kind="sandbox backend",
    group="sandboxes",
    key="sandbox",
    built_in={
        "namespace": "agentrl.sandbox.namespace.backend:NamespaceBackend",
        "docker": "agentrl.sandbox.docker.backend:DockerBackend",
    },
    wanted="a class with the methods of agentrl.types.sandbox.Backend",
    accept=any_class,
    contracts=[Backend],
)


def open_backend(use: str, settings: Mapping[str, Any] | None = None, base: Path | None = None) -> Backend:
    """Opens a backend by name, or by code that makes one.

    Args:
        settings: its own.
        base: folder that `./file.py:Name` is relative to; default: the current one.

    Raises:
        RecipeError: the backend does not exist, is not a backend, or a setting does not fit.
    """
    made: Backend = BACKENDS.load(use, settings or {}, base).make()
    return made
