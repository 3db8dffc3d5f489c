"""Sandboxes: where the commands of an agent run, and can hurt nothing.

`contract` says what a sandbox is; backends make them; `client` speaks to the toolbox that runs inside each. A
backend is opened by name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.registry.references import is_reference, load_object
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.types.errors import RecipeError, nearest
from agentrl.types.sandbox import Backend


def _docker(**settings: Any) -> Backend:
    from agentrl.sandbox.docker.backend import DockerBackend  # the package `docker` is an extra

    return DockerBackend(**settings)


BACKENDS: dict[str, Callable[..., Backend]] = {"namespace": NamespaceBackend, "docker": _docker}
"""Backends by name. A plug-in adds its own before the recipe is built."""


def open_backend(name: str, **settings: Any) -> Backend:
    """A backend by name, or a plug-in's as `pkg.module:Class`; `settings` go to its constructor.

    Raises:
        RecipeError: no such backend.
    """
    if is_reference(name):
        made: Backend = load_object(name, Path.cwd())(**settings)
        return made
    if name not in BACKENDS:
        remedy = nearest(name, BACKENDS)
        raise RecipeError(f"there is no sandbox backend {name!r}", place="sandbox.backend", remedy=remedy)
    return BACKENDS[name](**settings)
