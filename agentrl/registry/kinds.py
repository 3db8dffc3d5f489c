"""The kinds of plug-ins. Each registry is defined in the package whose contract it checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl.registry.references import load_object
from agentrl.registry.registry import Registry
from agentrl.types.errors import RecipeError, nearest

KINDS = {
    "tools": "agentrl.tools.registry:TOOLS",
    "agents": "agentrl.rollouts.agent:AGENTS",
    "states": "agentrl.rollouts.states.registry:STATES",
    "rewards": "agentrl.rewards.registry:REWARDS",
    "estimators": "agentrl.estimators.registry:ESTIMATORS",
    "losses": "agentrl.training.losses.registry:LOSSES",
    "preference-losses": "agentrl.training.losses.registry:PREFERENCE_LOSSES",
    "sources": "agentrl.curriculum.task_sources:SOURCES",
    "curriculum": "agentrl.curriculum.registry:PARTS",
    "formats": "agentrl.chat.formats.registry:FORMATS",
    "sandboxes": "agentrl.sandbox.registry:BACKENDS",
    "engines": "agentrl.engines.registry:ENGINES",
    "trainers": "agentrl.training.backends:TRAINERS",
    "transfers": "agentrl.engines.vllm.transfer:TRANSFERS",
    "launchers": "agentrl.distributed.launchers:LAUNCHERS",
    "trackers": "agentrl.reporters.registry:TRACKERS",
}
"""By the name that `agentrl list` takes: the registry, by reference."""


def registry_of(kind: str) -> Registry[Any]:
    """Returns the registry of a kind.

    Raises:
        RecipeError: the kind does not exist.
    """
    if kind not in KINDS:
        raise RecipeError(f"there is no kind of plug-in {kind!r}", remedy=nearest(kind, KINDS))
    found: Registry[Any] = load_object(KINDS[kind], Path())
    return found
