"""Errors of settings that may have one of several forms: pydantic gives one for each form, a person needs one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

Found = Mapping[str, Any]
"""An entry of `ValidationError.errors()`."""

_PLAIN = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
}
"""Names that pydantic gives the forms that are no section, and what a person calls them."""


def united(errors: Iterable[Found], data: Any) -> Iterator[Found]:
    """Yields the errors without the names of forms in their places.

    Where a section was given, its errors are those of the section that fits best. Where another value was given, one
    error of the type `forms` lists what it may be.

    Args:
        data: what was validated.
    """
    for place, group in groupby(errors, lambda found: _place(found["loc"], data)):
        found = list(group)
        if place is None:
            yield from found
        elif isinstance(given := _at(data, place), dict):
            yield from united([_without_form(each, len(place)) for each in _best(found, len(place))], data)
        else:
            forms = dict.fromkeys(_form(each, len(place)) for each in found)
            yield {"type": "forms", "loc": place, "msg": f"must be {', or '.join(forms)}", "input": given}


def _place(loc: tuple[Any, ...], data: Any) -> tuple[Any, ...] | None:
    """The place of the setting whose form the location names; None if it names none."""
    for index, part in enumerate(loc):
        if not (part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)):
            return loc[:index] if _names_form(part) else None
        data = data[part]
    return None


def _names_form(part: Any) -> bool:
    return isinstance(part, str) and (part in _PLAIN or "[" in part or part[:1].isupper())


def _at(data: Any, place: tuple[Any, ...]) -> Any:
    for part in place:
        data = data[part]
    return data


def _best(found: list[Found], at: int) -> list[Found]:
    """The errors of the section with the fewest, or all of them if no form is a section."""
    sections: dict[Any, list[Found]] = {}
    for each in found:
        if each["loc"][at] not in _PLAIN and "[" not in each["loc"][at]:
            sections.setdefault(each["loc"][at], []).append(each)
    return min(sections.values(), key=len, default=found)


def _without_form(found: Found, at: int) -> Found:
    return {**found, "loc": (*found["loc"][:at], *found["loc"][at + 1 :])}


def _form(found: Found, at: int) -> str:
    """What the setting may be, as a person says it."""
    if found["type"] == "literal_error":
        return str(found["ctx"]["expected"])
    if found["type"] in ("model_type", "model_attributes_type"):
        return "a section of keys"
    return _PLAIN.get(found["loc"][at].partition("[")[0], str(found["msg"]).removeprefix("Input should be "))
