"""Short forms in recipes: a name alone, or a name with its settings."""

from __future__ import annotations

from typing import Any


def named(value: Any, key: str = "use") -> Any:
    """`gspo` as `{use: gspo}`, and `{gspo: {clip_low: 0.1}}` as `{use: gspo, clip_low: 0.1}`; all else as it is.

    Args:
        key: under which the name belongs.
    """
    if isinstance(value, str):
        return {key: value}
    if isinstance(value, dict) and len(value) == 1 and key not in value:
        ((name, settings),) = value.items()
        if settings is None or isinstance(settings, dict):
            return {**(settings or {}), key: name}
    return value
