"""Checks a recipe: everything that can be wrong before the first episode."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from agentrl.api.certify.certificate import told
from agentrl.config.bases import read_recipe
from agentrl.config.files import find_recipe
from agentrl.config.loader import load_recipe
from agentrl.config.model import ModelSettings
from agentrl.config.profiles import CONTROL
from agentrl.config.tasks import TaskSettings
from agentrl.distributed.launchers import check_launcher
from agentrl.integrations.harbor import cautions as of_harbor
from agentrl.preflight.plan import plan
from agentrl.preflight.tasks import check_tasks
from agentrl.preflight.training import check_seats
from agentrl.reporters.registry import trackers
from agentrl.rollouts.auxiliary.open import check_policies
from agentrl.rollouts.builder import build


@dataclass(frozen=True)
class CheckedRecipe:
    """A recipe whose parts could be built.

    Attributes:
        sandbox: True if an episode needs one.
        rewards: resources that a call occupies, by component: `engine`, `sandbox`.
        model: a folder, a name of the Hugging Face Hub, `from scratch`, or None if only scripts play.
        stages: the kind of each, by name; empty for a recipe without `stages`.
        certificate: summary of the recipe's certificate (`agentrl env check --store`); None without one.
        warnings: allowed settings that may be unintended, with the reason.
    """

    name: str
    tasks: int
    tools: list[str]
    sandbox: bool
    rewards: dict[str, list[str]]
    credit: str
    credit_settings: dict[str, Any]
    model: str | None
    scripts: list[str]
    stages: dict[str, str]
    certificate: str | None
    warnings: list[str]


def check(name: str, overrides: list[str], profile: str | None = None) -> CheckedRecipe:
    """Builds every part of a recipe.

    Raises:
        AgentRLError: the first thing that is wrong.
    """
    recipe = load_recipe(name, overrides, profile)
    if profile is None and CONTROL in read_recipe(find_recipe(name)).values:
        load_recipe(name, overrides, CONTROL)
    planned = plan(recipe) if recipe.stages or recipe.train is not None else None
    trained = [each.parts for each in planned.rl] if planned is not None else []
    # Where the recipe lists no stages, its training is of the recipe itself.
    parts = trained[0] if trained and not recipe.stages else build(recipe)
    # A recipe whose stages learn from files, and play nothing, needs no tasks.
    plays = bool(trained) or not recipe.stages or recipe.tasks != TaskSettings()
    names, *_ = [check_tasks(each) for each in dict.fromkeys([parts, *trained])] if plays else [[]]
    check_seats(parts)
    parts.open_backend()
    check_policies(parts)
    check_launcher(recipe.scale, recipe.base)
    if planned is None:
        trackers(recipe.track, recipe.base)
    return CheckedRecipe(
        name=recipe.name,
        tasks=len(parts.tasks) if plays else 0,
        tools=names,
        sandbox=parts.needs_sandbox,
        rewards={component.name: list(component.costs) for component in parts.rewards.components},
        credit=parts.credit.estimator.name,
        credit_settings=parts.credit.settings.model_dump(mode="json"),
        model=_model(recipe.model),
        scripts=list(recipe.scripts),
        stages={stage.name: stage.kind for stage in recipe.stages},
        certificate=told(recipe),
        warnings=[
            *(f"tasks: {told}" for told in (parts.tasks.told_of_skipped() if plays else ())),
            *(of_harbor.cautions(recipe, parts.tasks.tasks) if plays else ()),
            *(planned.warnings if planned is not None else ()),
        ],
    )


def _model(model: ModelSettings | None) -> str | None:
    if model is None or model.scratch is not None:
        return None if model is None else "from scratch"
    if importlib.util.find_spec("transformers") is None:
        return str(model.path)
    from agentrl.models.load import find_model

    found = find_model(str(model.path), model.revision)
    if found is not None:
        return str(found)
    at = "" if model.revision is None else f" at {model.revision}"
    return f"{model.path}{at} (Hugging Face Hub: downloaded when it is first loaded)"
