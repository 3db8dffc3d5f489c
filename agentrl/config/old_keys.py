"""Keys of earlier versions. In a recipe file they are errors that name the new key; stored runs are migrated."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

Location = tuple[str | int, ...]

RENAMED: dict[tuple[str, ...], str] = {
    ("credit", "estimator"): "use",
    ("sandbox", "backend"): "use",
    ("scale", "backend"): "use",
    ("train", "staleness"): "max_staleness",
    ("stages", "*", "rl", "train", "staleness"): "max_staleness",
    ("rewards", "*", "tools"): "search_tools",
    ("stages", "*", "rl", "rewards", "*", "tools"): "search_tools",
}
"""Path of an old key -> its new name. `*`: every entry of a list or mapping."""

RENAMED_OF = {
    "search_tools": (
        "evidence_judgement",
        "frugal_search",
        "retrieval_recall",
        "retrieval_utility",
        "search_planning",
    ),
}
"""New names of settings -> the plug-ins that have them: the old key of others is their own."""

SPREAD: list[tuple[str, ...]] = [("agent", "args"), ("tools", "*", "settings")]
"""Mappings whose keys moved up, next to `use`."""

GONE: dict[tuple[str, ...], str] = {
    ("engine", "cuda_graphs"): "remove the key: the torch engine launches every operation; the engine for GPUs is vllm",
}
"""Path of a removed key -> remedy."""


def old_keys(tree: Any) -> Iterator[tuple[Location, str, str]]:
    """The old keys of a recipe: location, what happened to the key, remedy."""
    for location, _, now in _renamed(tree):
        yield location, "is a key of earlier versions", f"write {'.'.join(map(str, (*location[:-1], now)))}"
    for path in SPREAD:
        for location, section in _found(tree, path):
            if isinstance(section[path[-1]], dict):
                keys = ", ".join(f"{key}: ..." for key in section[path[-1]]) or "..."
                yield location, "is a key of earlier versions", f"write its keys beside 'use': {{use: NAME, {keys}}}"
    for path, remedy in GONE.items():
        for location, _ in _found(tree, path):
            yield location, "was removed", remedy


def renewed(stored: Any) -> Any:
    """A stored recipe with its old keys replaced. The argument is not changed."""
    tree = copy.deepcopy(stored)
    for location, section, now in _renamed(tree):
        value = section.pop(str(location[-1]))
        if value is not None:  # else the default, which replaces null
            section[now] = value
    for path in SPREAD:
        for _, section in _found(tree, path):
            if isinstance(section[path[-1]], dict):
                section.update(section.pop(path[-1]))
    for path in GONE:
        for _, section in _found(tree, path):
            del section[path[-1]]
    return tree


def _renamed(tree: Any) -> Iterator[tuple[Location, dict[str, Any], str]]:
    """The renamed keys: location, the section that contains the key, its new name."""
    for path, now in RENAMED.items():
        for location, section in _found(tree, path):
            if now not in RENAMED_OF or (section.get("use") or location[-2]) in RENAMED_OF[now]:
                yield location, section, now


def _found(tree: Any, path: tuple[str, ...]) -> list[tuple[Location, dict[str, Any]]]:
    """The locations of the key at the end of a path, with the sections that contain it."""
    at: list[tuple[Location, Any]] = [((), tree)]
    for part in path[:-1]:
        at = [pair for location, section in at for pair in _children(location, section, part)]
    return [((*location, path[-1]), each) for location, each in at if isinstance(each, dict) and path[-1] in each]


def _children(location: Location, at: Any, part: str) -> list[tuple[Location, Any]]:
    if part == "*":
        entries = at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ()
        return [((*location, key), item) for key, item in entries]
    return [((*location, part), at[part])] if isinstance(at, dict) and part in at else []
