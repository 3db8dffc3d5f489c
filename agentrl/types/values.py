"""Converts values from tools, agents, tasks and rewards to types that a record can hold: text, finite numbers, JSON.

Values are checked on entry, so that the error names the code that made them and ends one episode, not the run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

from agentrl.types.errors import AgentRLError

MAX_DEPTH = 100
"""Maximum nesting of lists and dicts: one process could store deeper values that another cannot read."""


class ValueRefused(AgentRLError):
    """A value cannot be recorded."""


def text(value: Any) -> str:
    """Converts `value` to text: None to "", bytes from UTF-8, containers to JSON, anything else by `str()`.

    Lone surrogates (undecodable bytes of a file name, for example) become "?": files and tokenizers do not take them.
    """
    if isinstance(value, str):
        found = str.__str__(value)
    elif value is None:
        found = ""
    elif isinstance(value, bytes | bytearray | memoryview):
        found = bytes(value).decode("utf-8", "replace")
    elif isinstance(value, dict | list | tuple):
        found = json.dumps(value, ensure_ascii=False, default=str)
    else:
        found = str(value)
    return found if found.isascii() else found.encode("utf-8", "replace").decode()


def said(error: BaseException) -> str:
    """Returns the message of an exception, even if its `__str__` raises."""
    try:
        return text(str(error))
    except Exception as worse:
        return f"(its message cannot be read: {type(worse).__name__})"


def number(value: Any, what: str, place: str | None = None) -> float:
    """Converts `value` to a float: any finite real number, a bool, or a scalar of NumPy or torch.

    Args:
        what: names the value in the error, for example `reward 'hit'`.

    Raises:
        ValueRefused: it is something else, NaN or infinite.
    """
    scalar = value.item() if getattr(value, "ndim", None) == 0 else value
    try:
        found = float(scalar) if isinstance(scalar, Real) else math.nan
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueRefused(f"{what} is {shown(value)}", place=place, remedy="give a finite number")
    return found


def point(value: Any) -> tuple[float, float]:
    """Converts a point (x, y) of an image.

    Raises:
        ValueRefused: it is not a pair of finite numbers.
    """
    try:
        x, y = value
    except (TypeError, ValueError):
        message = f"a point is a pair (x, y), not {shown(value)}"
        raise ValueRefused(message, remedy="ToolResult(points=[(x, y)])") from None
    return number(x, "the x of a point"), number(y, "the y of a point")


def rewards(given: Any, place: str | None = None) -> dict[str, float]:
    """Converts reward components by name to floats; None means no components.

    Raises:
        ValueRefused: it is not a mapping, or a value is not a finite number.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueRefused(f"rewards are {shown(given)}", place=place, remedy="give a dict of names and numbers")
    return {text(name): number(value, f"reward {text(name)!r}", place) for name, value in given.items()}


def added(one: Mapping[str, float | None], other: Mapping[str, float]) -> dict[str, float | None]:
    """Adds the reward components of one turn from two sources, by name."""
    total = dict(one)
    for name, value in other.items():
        total[name] = number((total.get(name) or 0.0) + value, f"the sum of the rewards {name!r} of a turn")
    return total


def state_key(value: Any, place: str, what: str = "state_key()") -> str:
    """Converts a state to its key: text unchanged, bytes in hexadecimal, numbers and JSON containers as JSON.

    Args:
        what: who gave it, for the error.

    Raises:
        ValueRefused: it is anything else, whose text might differ for equal states (`<Board object at 0x...>`).
    """
    if isinstance(value, str):  # different states keep different keys, also with invalid bytes
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bytes):
        return value.hex()
    try:
        return json.dumps(plain(value.item() if getattr(value, "ndim", None) == 0 else value), sort_keys=True)
    except ValueRefused as error:
        raise ValueRefused(
            f"{what} returned {shown(value)}: {error.message}", place=place, remedy="return the state as text"
        ) from None


def plain(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """Copies a value to plain JSON types, as read back from a record: tuples become lists, subclasses their base.

    Args:
        path: keys that lead to `value`, for the error.

    Raises:
        ValueRefused: some of it is not JSON; names the keys that lead there and a replacement.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, int) and value.bit_length() <= _MAX_BITS:
        return int(value)
    if len(path) > MAX_DEPTH:
        raise ValueRefused(
            f"{_path(path[:4])}... is nested more than {MAX_DEPTH} levels deep, or holds itself",
            remedy="make it flat, or store it as one string",
        )
    if isinstance(value, dict):
        return {_key(key, path): plain(item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, (*path, k)) for k, item in enumerate(value)]
    raise ValueRefused(f"{_path(path)} is {shown(value)}, which JSON cannot hold", remedy=_remedy(value))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields settings by dotted key. A list of sections (stages, tools) is a section with indices as keys."""
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        value = {str(index): each for index, each in enumerate(value)}
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, value


def scrubbed(value: Any) -> Any:
    """Returns JSON values without lone surrogates."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {scrubbed(key): scrubbed(item) for key, item in value.items()}
    return [scrubbed(item) for item in value] if isinstance(value, list) else value


_MAX_BITS = 14_000  # Python reads no integer of more than 4,300 digits.

_REMEDIES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (float, "write None, in JSON null, where there is no number"),
    (int, "write it as text: str(value)"),
    ((set, frozenset), "write sorted(value)"),
    ((bytes, bytearray), "write value.decode(), or base64.b64encode(value).decode()"),
)
_REMEDIES_BY_TRAIT = {
    "__fspath__": "write str(value)",
    "tolist": "write value.tolist()",
    "__dataclass_fields__": "write dataclasses.asdict(value)",
    "model_dump": "write value.model_dump(mode='json')",
    "isoformat": "write value.isoformat()",
}


def _remedy(value: Any) -> str:
    by_type = (remedy for kinds, remedy in _REMEDIES if isinstance(value, kinds))
    by_trait = (remedy for trait, remedy in _REMEDIES_BY_TRAIT.items() if hasattr(value, trait))
    return next(by_type, None) or next(by_trait, "write numbers, strings, lists and dicts")


def _key(key: Any, path: tuple[Any, ...]) -> str:
    if not isinstance(key, str):
        raise ValueRefused(
            f"{_path(path)} has the key {shown(key)}, and keys of JSON are strings", remedy="write str(key)"
        )
    return text(key)


def _path(path: tuple[Any, ...]) -> str:
    """Formats keys as a path: `gold.rows[3].name`."""
    return "".join(_steps(path)).lstrip(".") or "it"


def _steps(path: tuple[Any, ...]) -> Iterator[str]:
    return (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def shown(value: Any) -> str:
    """Returns the beginning of a value's `repr`, and its type."""
    try:
        words = text(" ".join(repr(value).split()))
    except Exception:
        words = "a value"
    return f"{words if len(words) <= 80 else f'{words[:77]}...'} ({type(value).__name__})"
