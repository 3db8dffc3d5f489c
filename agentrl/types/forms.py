"""Errors of settings that may have one of several forms: pydantic gives one for each form, a person needs one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

Found = Mapping[str, Any]
"""An entry of `ValidationError.errors()`."""

_OF_KEY = "[key]"
"""The mark of pydantic behind a key that is wrong itself."""
_PLAIN = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
    **dict.fromkeys(("model", "dataclass"), "a section of keys"),
}
"""Plain words for a form, by the beginnings of the types of its errors."""
_REFUSALS = ("_type", "_parsing", "_from_float", "literal_error", "enum", "none_required", "is_instance_of", "forms")
"""Endings of the types of errors whose value has another form."""


def united(errors: Iterable[Found], data: Any) -> Iterator[Found]:
    """Yields the errors without the names of forms in their places.

    The errors of a value that has one of the forms, but is out of bounds or has errors inside it, are those of the form
    that fits best. For a value that has none of them, one error of the type `forms` lists what it may be.

    Args:
        data: what was validated.
    """
    for place, group in groupby(errors, lambda found: _place(found, data)):
        found = list(group)
        if place is None or _is_key(found, len(place)):
            yield from found
            continue
        forms = _by_form(found, len(place), data)
        fitting = [own for own in forms if not all(_refuses(each, place) for each in own)]
        if fitting:
            yield from min(fitting, key=len)
        else:
            texts = dict.fromkeys(_form(each) for own in forms for each in own)
            yield {"type": "forms", "loc": place, "msg": f"must be {', or '.join(texts)}", "input": _at(data, place)}


def _is_key(found: list[Found], at: int) -> bool:
    """Returns True if the name at a place is a key that a validator made of the value there.

    It is then the only name: of several forms each has an error.
    """
    return {each["loc"][at:] for each in found} == {found[0]["loc"][at : at + 1]}


def _by_form(found: Iterable[Found], at: int, data: Any) -> list[list[Found]]:
    """The errors of each form, united, without its name, which is part `at` of their places."""
    forms: dict[Any, list[Found]] = {}
    for each in found:
        stripped = {**each, "loc": (*each["loc"][:at], *each["loc"][at + 1 :])}
        forms.setdefault(each["loc"][at], []).append(stripped)
    return [list(united(own, data)) for own in forms.values()]


def _place(found: Found, data: Any) -> tuple[Any, ...] | None:
    """The place of the setting whose form the location of an error names; None if it names none."""
    loc = found["loc"]
    for index, part in enumerate(loc):
        if not _leads_on(part, data):
            return loc[:index] if _names_form(found, index, data) else None
        data = data[part]
    return None


def _leads_on(part: Any, data: Any) -> bool:
    if isinstance(data, dict):
        return part in data
    return isinstance(data, list | tuple) and isinstance(part, int) and 0 <= part < len(data)


def _names_form(found: Found, index: int, data: Any) -> bool:
    """Returns True if a part of a location, which is no key of the data there, is the name of a form of it."""
    part, rest = found["loc"][index], found["loc"][index + 1 :]
    if not isinstance(part, str) or part == _OF_KEY:
        return False
    if not rest:
        return found["type"] != "missing" and (found["input"] is data or "[" in part)
    return "[" in part or part[:1].isupper() or _leads_on(rest[0], data) or _is_missing(found, rest, data)


def _is_missing(found: Found, rest: tuple[Any, ...], data: Any) -> bool:
    return len(rest) == 1 and found["type"] == "missing" and found["input"] is data


def _at(data: Any, place: tuple[Any, ...]) -> Any:
    for part in place:
        data = data[part]
    return data


def _refuses(found: Found, place: tuple[Any, ...]) -> bool:
    return found["loc"] == place and str(found["type"]).endswith(_REFUSALS)


def _form(found: Found) -> str:
    """Returns a form of the setting, in plain words."""
    if "expected" in found.get("ctx", {}):
        return str(found["ctx"]["expected"])
    plain = _PLAIN.get(found["type"].partition("_")[0])
    return plain or str(found["msg"]).removeprefix("Input should be ").removeprefix("must be ")
