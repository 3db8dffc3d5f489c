"""Sandboxes: where the commands of an agent run, and can hurt nothing.

`contract` says what a sandbox is; backends make them; `client` speaks to the toolbox that runs inside each. A
backend is opened by name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from agentrl.errors import RecipeError
from agentrl.sandbox.contract import Backend
from agentrl.sandbox.namespace import NamespaceBackend

BACKENDS: dict[str, Callable[..., Backend]] = {"namespace": NamespaceBackend}
"""Backends by name. A plug-in adds its own before the recipe is built."""


def open_backend(name: str, **settings: Any) -> Backend:
    """A backend by name; `settings` go to its constructor.

    Raises:
        RecipeError: no such backend.
    """
    if name not in BACKENDS:
        near = difflib.get_close_matches(name, BACKENDS, 1)
        remedy = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(BACKENDS)}"
        raise RecipeError(f"there is no sandbox backend {name!r}", place="sandbox.backend", remedy=remedy)
    return BACKENDS[name](**settings)
