"""Reward components and the set of them that a recipe names."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentrl.episode.record import Episode
from agentrl.errors import AgentRLError, RecipeError
from agentrl.imports import is_reference, load_object
from agentrl.rewards.verifiers import BUILT_IN
from agentrl.task import Task

if TYPE_CHECKING:
    from agentrl.sandbox.contract import Sandbox

GIVEN = ("task", "episode", "sandbox")
"""What a component may ask for by the names of its parameters. All other parameters are settings."""


class RewardError(AgentRLError):
    """A reward component raised, or returned something that is no reward."""


class Score(NamedTuple):
    """What an episode was given.

    Attributes:
        components: by name; None = never scored.
        total: their weighted sum; None if no component that carries weight was scored.
    """

    components: dict[str, float | None]
    total: float | None


@dataclass(frozen=True)
class Component:
    """One reward function with its settings.

    Attributes:
        wants: which of `GIVEN` it asks for.
        settings: checked against its other parameters.
    """

    name: str
    function: Callable[..., Any]
    weight: float
    wants: tuple[str, ...]
    settings: dict[str, Any]

    async def __call__(self, task: Task, episode: Episode, sandbox: Sandbox | None) -> float | None:
        """Scores an episode.

        Raises:
            RewardError: the function raised, or returned neither None nor a finite number.
            AgentRLError: as the function raised it (a lost sandbox is not the function's fault).
        """
        given = {"task": task, "episode": episode, "sandbox": sandbox}
        try:
            value = self.function(**{name: given[name] for name in self.wants}, **self.settings)
            if inspect.isawaitable(value):
                value = await value
        except AgentRLError as error:
            error.add_note(f"in reward component {self.name!r}")
            raise
        except Exception as error:
            raise RewardError(
                f"reward component {self.name!r} raised {type(error).__name__}: {error}",
                place=f"episode {episode.id}",
            ) from error
        if value is None:
            return None
        if not isinstance(value, Real | np.bool_) or not math.isfinite(value):
            raise RewardError(
                f"reward component {self.name!r} returned {value!r} ({type(value).__name__})",
                place=f"episode {episode.id}",
                remedy="return a finite number, or None where nothing could be scored",
            )
        return float(value)


@dataclass(frozen=True)
class RewardSet:
    """The reward components of a recipe, in its order."""

    components: tuple[Component, ...]

    @classmethod
    def from_recipe(cls, rewards: Mapping[str, Any], base: Path = Path()) -> RewardSet:
        """Finds the functions and checks their settings.

        Args:
            rewards: by component name: a reference or function, or `{use, weight, ...settings}`. Without `use` the
                built-in of the component's name is taken. Weight 0 records a component without counting it.
            base: folder that `./task.py` is relative to.

        Raises:
            RecipeError: no such function, a setting it does not have, or no component that counts.
        """
        components = tuple(_component(name, given, base) for name, given in rewards.items())
        if components and not any(component.weight for component in components):
            raise RecipeError(
                "all reward components have weight 0: no episode would ever be scored",
                place="rewards",
                remedy="give at least one of them a weight",
            )
        return cls(components)

    @property
    def needs_sandbox(self) -> bool:
        """Whether some component asks for the sandbox and has no default for it."""
        return any(
            "sandbox" in component.wants
            and inspect.signature(component.function).parameters["sandbox"].default is inspect.Parameter.empty
            for component in self.components
        )

    async def score(self, task: Task, episode: Episode, sandbox: Sandbox | None = None) -> Score:
        """Scores an episode with every component, one after the other: verifiers may share the sandbox.

        Args:
            sandbox: as the episode left it; None when no tool needed one.

        Raises:
            RewardError, AgentRLError: as `Component` does.
        """
        components = {component.name: await component(task, episode, sandbox) for component in self.components}
        return Score(components, self.combine(components))

    def combine(self, components: Mapping[str, float | None]) -> float | None:
        """The weighted sum of the scored components.

        A component of weight 0 is a metric: scored alone, it makes no reward of 0.0.
        """
        weights = {component.name: component.weight for component in self.components}
        terms = [weights[name] * value for name, value in components.items() if value is not None and weights[name]]
        return sum(terms) if terms else None


def _component(name: str, given: Any, base: Path) -> Component:
    place = f"rewards.{name}"
    spec = dict(given or {}) if given is None or isinstance(given, Mapping) else {"use": given}
    use, weight = spec.pop("use", None), spec.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, Real) or not math.isfinite(weight):
        raise RecipeError(f"weight {weight!r} is no finite number", place=f"{place}.weight")
    function = _find(name if use is None else use, base, place)
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError:  # annotations that exist for type checkers only
        signature = inspect.signature(function)
    parameters = signature.parameters
    wants = tuple(parameter for parameter in parameters if parameter in GIVEN)
    return Component(name, function, float(weight), wants, _settings(signature, spec, place))


def _find(use: str | Callable[..., Any], base: Path, place: str) -> Callable[..., Any]:
    if isinstance(use, str) and not is_reference(use):
        if use in BUILT_IN:
            return BUILT_IN[use]
        near = difflib.get_close_matches(use, BUILT_IN, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RecipeError(
            f"there is no built-in reward {use!r}",
            place=place,
            remedy=f"{hint}built-in: {', '.join(sorted(BUILT_IN))}; or name your own: ./task.py:function",
        )
    function = load_object(use, base) if isinstance(use, str) else use
    if not callable(function) or isinstance(function, type):
        raise RecipeError(f"{use!r} is no function", place=place)
    return function


def _settings(signature: inspect.Signature, spec: dict[str, Any], place: str) -> dict[str, Any]:
    """Checks settings against the parameters that are not `GIVEN`; returns them as the hints coerce them."""
    fields: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RecipeError(
                f"a reward function cannot take {parameter}",
                place=place,
                remedy="name what it needs: task, episode, sandbox, and settings",
            )
        if name not in GIVEN:
            hint = Any if parameter.annotation is parameter.empty else parameter.annotation
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (Any if isinstance(hint, str) else hint, default)
    model: type[BaseModel] = create_model(
        "Settings", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields
    )
    try:
        checked = model.model_validate(spec)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        problem = {
            "extra_forbidden": f"it has no setting {key!r}",
            "missing": f"its setting {key!r} is missing",
        }.get(first["type"], f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {first['input']!r}")
        near = difflib.get_close_matches(key, fields, 1) if first["type"] == "extra_forbidden" else []
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RecipeError(
            problem, place=f"{place}.{key}", remedy=f"{hint}settings: {', '.join(fields) or 'none'}; and use, weight"
        ) from None
    return {name: getattr(checked, name) for name in checked.model_fields_set}
