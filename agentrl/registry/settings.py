"""Settings of plug-ins, and the errors for invalid ones.

A plug-in declares its settings as parameters of its function or constructor: those that the framework does not fill.
Each is a setting, its annotation the type and its default the default. Or one of them takes all settings: it is the
only one and annotated with a pydantic model (not behind `*`: then it is one setting), or it is called `settings`.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from agentrl.types.errors import RecipeError, nearest
from agentrl.types.forms import united

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class NoSettings(BaseModel):
    """Settings of a plug-in that has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Declared:
    """The settings of a plug-in.

    Attributes:
        model: the pydantic model of the settings.
        whole: the parameter that takes them as one object; None: every setting is a parameter.
        wants: its parameters that the framework fills by name.
        as_written: references and paths in the settings are left to the plug-in.
    """

    model: type[BaseModel]
    whole: str | None = None
    wants: tuple[str, ...] = ()
    as_written: bool = False

    def arguments(self, settings: BaseModel) -> dict[str, Any]:
        """Converts settings to keyword arguments. Unset ones keep the defaults of their parameters."""
        if self.whole is not None:
            return {self.whole: settings}
        return {name: getattr(settings, name) for name in settings.model_fields_set}


def declared(plug_in: Any, leading: Sequence[str] = (), filled: Collection[str] = ()) -> Declared:
    """Returns the settings that a function, or the constructor of a class, declares.

    Args:
        leading: names of its positional arguments, for messages.
        filled: parameters that the framework fills by name if the plug-in has them.

    Raises:
        TypeError: it cannot be called with these arguments.
    """
    parameters = _beyond([*signature_of(plug_in).parameters.values()], leading)
    if any(each.kind in _OPEN for each in parameters) and filled:
        stranger = next(each for each in parameters if each.kind in _OPEN)
        raise TypeError(f"cannot take {stranger}: name what it needs ({', '.join(filled)}), and settings")
    wants = tuple(each.name for each in parameters if each.name in filled)
    own = [each for each in parameters if each.name not in filled and each.kind in _BY_NAME and each.name[0] != "_"]
    whole = _whole(plug_in, own)
    if whole is not None:
        return Declared(whole[1], whole[0], wants)
    return Declared(_model_of(own, any_other=any(each.kind is each.VAR_KEYWORD for each in parameters)), None, wants)


def _whole(plug_in: Any, own: Sequence[inspect.Parameter]) -> tuple[str, type[BaseModel]] | None:
    """Returns the parameter that takes all settings, and their model; None: every parameter is a setting.

    Raises:
        TypeError: a class has `Settings`, and no parameter takes them.
    """
    names = [each.name for each in own]
    attribute = getattr(plug_in, "Settings", NoSettings) if isinstance(plug_in, type) else NoSettings
    if attribute is not NoSettings and "settings" not in names:
        raise TypeError("has Settings, and its constructor no parameter 'settings'")
    for each in own:
        model = attribute if attribute is not NoSettings else _model_in(each.annotation)
        if each.name == "settings" and model is None and each.annotation is each.empty:
            model = NoSettings
        alone = len(own) == 1 and each.kind is not each.KEYWORD_ONLY  # `*, judge: Judge` is the setting `judge`
        if model is not None and (each.name == "settings" or alone):
            return each.name, NoSettings if model is BaseModel else model
    return None


def signature_of(plug_in: Any) -> inspect.Signature:
    """The signature of a function or constructor. An annotation that cannot be evaluated, because it exists for type
    checkers only, is Any."""
    namespace, signature = _namespace(plug_in), inspect.signature(plug_in)
    return signature.replace(
        parameters=[
            each.replace(annotation=_evaluated(each.annotation, namespace)) for each in signature.parameters.values()
        ],
        return_annotation=_evaluated(signature.return_annotation, namespace),
    )


def checked(
    model: type[BaseModel],
    given: Mapping[str, Any],
    name: str,
    place: str,
    *,
    filled: Collection[str] = (),
    beside: Collection[str] = (),
    who_has: Callable[[str], Sequence[str]] = lambda key: (),
) -> BaseModel:
    """Checks settings against a model.

    Args:
        name: the plug-in, for messages.
        place: the key of the recipe that contains the settings.
        filled: parameters that are not settings, for messages about misspelt ones.
        beside: other keys of the section, for messages about misspelt ones.
        who_has: returns the plug-ins with a setting of this name.

    Raises:
        RecipeError: a setting is unknown, missing or invalid.
    """
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        found = next(united(error.errors(), dict(given)))
        key = ".".join(map(str, found["loc"]))
        if found["type"] != "extra_forbidden":
            raise _unfit(found, key, name, place, filled) from None
        remedy = nearest(key, [*model.model_fields, *beside], "allowed here" if beside else "its settings")
        if key in filled:
            remedy = f"{key!r} is given by name to every function that takes it: call your parameter otherwise"
        elif key == name and isinstance(given[key], Mapping) and given[key]:  # the path as in the YAML
            remedy = f"the settings of {name} are keys of {place}: --set {place}.{next(iter(given[key]))}=..."
        elif others := who_has(key):
            remedy = f"{', '.join(others)} {'has' if len(others) == 1 else 'have'} it; {remedy}"
        raise RecipeError(f"{name} has no setting {key!r}", place=f"{place}.{key}", remedy=remedy) from None


def _unfit(found: Any, key: str, name: str, place: str, filled: Collection[str]) -> RecipeError:
    """The error for a setting that is missing or has a wrong value."""
    at = f"{place}.{key}" if key else place
    if found["type"] != "missing":
        return RecipeError(in_words(found), place=at)
    if near := difflib.get_close_matches(key, list(filled), 1):
        remedy = f"did you mean {near[0]!r}? given by name: {', '.join(filled)}; or set {at}"
        return RecipeError(f"{name} has a parameter {key!r} that nothing fills", place=place, remedy=remedy)
    return RecipeError(f"{name} needs the setting {key!r}", place=at)


def in_words(found: Any) -> str:
    """One entry of `ValidationError.errors()` as the second half of a sentence, with the value that was found."""
    text = str(found["msg"]).removeprefix("Value error, ")
    value = found.get("input")
    shown = "" if isinstance(value, dict) else f", found {value!r} ({type(value).__name__})"
    return text[:1].lower() + text[1:] + shown


def _beyond(parameters: list[inspect.Parameter], leading: Sequence[str]) -> list[inspect.Parameter]:
    """Returns the parameters after the positional ones."""
    left = list(parameters)
    for _ in leading:
        if left and left[0].kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
            del left[0]
        elif not (left and left[0].kind is inspect.Parameter.VAR_POSITIONAL):
            raise TypeError(f"takes {inspect.Signature(parameters)}, and is called with ({', '.join(leading)})")
    return left


def _namespace(plug_in: Any) -> dict[str, Any]:
    """Returns the namespace for evaluating the annotations of a function or constructor."""
    made_by = inspect.getattr_static(plug_in, "__init__") if isinstance(plug_in, type) else inspect.unwrap(plug_in)
    module = sys.modules.get(getattr(plug_in, "__module__", None) or "")
    return {**(vars(module) if module is not None else {}), **getattr(made_by, "__globals__", {})}


def _evaluated(hint: Any, namespace: dict[str, Any]) -> Any:
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, namespace)
    except Exception:  # a name that exists for type checkers only
        return Any


def _model_in(hint: Any) -> type[BaseModel] | None:
    """Returns the pydantic model of an annotation `Model` or `Model | None`, else None."""
    options = [each for each in (typing.get_args(hint) or (hint,)) if each is not type(None)]
    if len(options) == 1 and isinstance(options[0], type) and issubclass(options[0], BaseModel):
        return options[0]
    return None


def _model_of(parameters: Sequence[inspect.Parameter], *, any_other: bool) -> type[BaseModel]:
    """A model with a field for each parameter."""
    config = ConfigDict(
        extra="allow" if any_other else "forbid",
        frozen=True,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    fields = {each.name: _field(each, config) for each in parameters}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a setting `schema` or `copy` hides an unused method of the model
        return create_model("Settings", __config__=config, **fields)


def _field(parameter: inspect.Parameter, config: ConfigDict) -> Any:
    default = ... if parameter.default is parameter.empty else parameter.default
    hint = Any if parameter.annotation is parameter.empty else parameter.annotation
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            probe: Any = {parameter.name: (hint, default)}
            create_model("Probe", __config__=config, **probe)
    except Exception:  # pydantic cannot check this type
        hint = Any
    return (Any if any(map(_is_vague, _leaves(hint))) else hint, default)


def _leaves(hint: Any) -> Iterator[Any]:
    yield hint
    for each in typing.get_args(hint):
        yield from _leaves(each)


def _is_vague(hint: Any) -> bool:
    """Returns True if objects cannot be checked against the type: a protocol that is not runtime_checkable."""
    return getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", False)
