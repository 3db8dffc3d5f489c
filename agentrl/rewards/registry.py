"""Reward functions by name, by reference, and the check of their settings."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentrl.registry.references import is_reference, load_object, wrong_kind
from agentrl.rewards.functions.calibration import brier
from agentrl.rewards.functions.code import code_tests
from agentrl.rewards.functions.cost import frugal_search, router_cost, search_planning
from agentrl.rewards.functions.feedback import unary_feedback
from agentrl.rewards.functions.gui import gui_action
from agentrl.rewards.functions.judge import pairwise_judge, rubric_judge
from agentrl.rewards.functions.length import laser, overlong
from agentrl.rewards.functions.maths import maths
from agentrl.rewards.functions.patch import patch_similarity
from agentrl.rewards.functions.reseek import evidence_judgement
from agentrl.rewards.functions.retrieval import retrieval_recall, retrieval_utility
from agentrl.rewards.functions.sql import sql_execution, sql_partial
from agentrl.rewards.functions.state import state_check
from agentrl.rewards.functions.verifiers import exact_match, f1, format, numeric, tool_reward, tool_success, turn_format
from agentrl.types.errors import RecipeError, nearest

GIVEN = ("task", "episode", "turn", "sandbox", "fresh_sandbox", "open_sandbox", "component")
"""What a reward function may ask for by the names of its parameters; all others are settings.

`turn`: it is called for every turn. `sandbox`: as the episode left it. `fresh_sandbox`: one of the recipe's spec that
the agent never saw. `open_sandbox`: a function that starts one of these when awaited, for what needs two of them, or
not always one. `component`: the component's own name in the recipe.
"""

BUILT_IN: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        exact_match, f1, numeric, maths, code_tests, state_check, sql_execution, sql_partial, patch_similarity,
        format, turn_format, tool_success, tool_reward, gui_action, evidence_judgement, retrieval_recall,
        retrieval_utility, brier, router_cost, frugal_search, search_planning, laser, overlong, unary_feedback,
        rubric_judge, pairwise_judge,
    )
}  # fmt: skip


def find_reward(use: str | Callable[..., Any], base: Path, place: str) -> Callable[..., Any]:
    """The function of a built-in name, of a reference, or itself.

    Raises:
        RecipeError: there is none, or it is no function.
    """
    if isinstance(use, str) and not is_reference(use):
        if use in BUILT_IN:
            return BUILT_IN[use]
        raise RecipeError(
            f"there is no built-in reward {use!r}",
            place=place,
            remedy=nearest(use, sorted(BUILT_IN), "name your own as ./task.py:function, or take one of"),
        )
    function = load_object(use, base) if isinstance(use, str) else use
    if not _is_function(function):
        raise (
            wrong_kind(use, base, place, "a function", inspect.isfunction)
            if isinstance(use, str)
            else RecipeError(f"{use!r} is no function", place=place)
        )
    return function


def _is_function(found: Any) -> bool:
    return callable(found) and not isinstance(found, type)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature, with annotations evaluated where that is possible."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:  # annotations that exist for type checkers only
        return inspect.signature(function)


def check_settings(function: Callable[..., Any], spec: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Checks settings against the parameters that are not `GIVEN`; returns them as the hints coerce them.

    Raises:
        RecipeError: a setting that is not there, missing or of the wrong type, or a parameter that nothing fills.
    """
    fields: dict[str, Any] = {}
    for name, parameter in signature_of(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RecipeError(
                f"a reward function cannot take {parameter}",
                place=place,
                remedy=f"name what it needs: {', '.join(GIVEN)}, and settings",
            )
        if name not in GIVEN:
            hint = Any if parameter.annotation is parameter.empty else parameter.annotation
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (Any if isinstance(hint, str) else hint, default)
    model: type[BaseModel] = create_model(
        "Settings", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields
    )
    try:
        checked = model.model_validate(dict(spec))
    except ValidationError as error:
        raise _settings_error(error, function, fields, place) from None
    return {name: getattr(checked, name) for name in checked.model_fields_set}


def _settings_error(
    error: ValidationError, function: Callable[..., Any], fields: Mapping[str, Any], place: str
) -> RecipeError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    name = getattr(function, "__name__", str(function))
    near_given = difflib.get_close_matches(key, GIVEN, 1) if first["type"] == "missing" else []
    if near_given and len(first["loc"]) == 1:
        return RecipeError(
            f"{name} has a parameter {key!r} that nothing fills",
            place=place,
            remedy=f"did you mean {near_given[0]!r}? given by name: {', '.join(GIVEN)}; or set {place}.{key}",
        )
    problem = {
        "extra_forbidden": f"it has no setting {key!r}",
        "missing": f"its setting {key!r} is missing",
    }.get(first["type"], f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {first['input']!r}")
    listed = "use, weight, required, then, and its settings"
    remedy = nearest(key, fields, listed) if first["type"] == "extra_forbidden" else None
    return RecipeError(problem, place=f"{place}.{key}", remedy=remedy)
