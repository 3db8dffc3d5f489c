"""Origins of the keys of a recipe: its file or a base, a profile, or `--set`.

Layers are laid one over the other. Each one notes the keys that it sets; keys below them that were there before are
forgotten. A key is thus attributed to the layer that set it, also in a section that several layers set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from agentrl.config.recipe import Recipe
from agentrl.config.sections import Short, section_at

Loc = tuple[str, ...]
"""The path of a key; items of lists count from 0."""


@dataclass(frozen=True)
class RecipeLayer:
    """One of the texts that a recipe is made of.

    Attributes:
        place: its file, for messages; or `--set KEY=VALUE`.
        name: `profile NAME` or `--set`; None: the file of the recipe or of a base.
        base: the folder of relative paths; None: the recipe's.
    """

    place: Path | str
    name: str | None = None
    base: Path | None = None


@dataclass(frozen=True)
class KeyOrigin:
    """The layer that set a key, and the line (from 0) if it has lines."""

    layer: RecipeLayer
    line: int | None = None

    @property
    def place(self) -> str:
        """`file:line`, for messages."""
        return str(self.layer.place) + ("" if self.line is None else f":{self.line + 1}")


Origins = dict[Loc, KeyOrigin]
"""By key, in the order in which they were set."""


def note(origins: Origins, loc: Loc, value: Any, layer: RecipeLayer, line: int | None = None) -> None:
    """Notes that a layer set a key, and all keys of its value.

    Args:
        value: as it is written, for the lines in it.
        line: of the key.
    """
    for key in [key for key in origins if key[: len(loc)] == loc]:
        del origins[key]
    origins[loc] = KeyOrigin(layer, line)
    try:
        spelled = None if value is None else spelled_out(loc, value)
    except ValueError:  # the check of the recipe tells it
        spelled = value
    for key, item in _items(spelled):
        note(origins, (*loc, str(key)), item, layer, line_in(value, key, line))


def _items(node: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(node, Mapping):
        return node.items()
    return enumerate(node) if isinstance(node, list) else ()


def line_in(written: Any, key: Any, otherwise: int | None) -> int | None:
    """Returns the line (from 0) of a key of a section, also if it is written in a short form: `{gae: {lam: 0.9}}`."""
    found = line_of(written, key)
    if found is None and isinstance(written, Mapping) and len(written) == 1:
        found = line_of(next(iter(written.values())), key)
    return otherwise if found is None else found


def line_of(node: Any, key: Any) -> int | None:
    """Returns the line (from 0) of a key or an item of a YAML node; None if the file has none."""
    try:
        if isinstance(node, CommentedMap):
            return int(node.lc.key(key)[0])
        if isinstance(node, CommentedSeq):
            return int(node.lc.item(key)[0])
    except (KeyError, IndexError, TypeError, AttributeError):
        pass
    return None


def spelled_out(path: Loc, value: Any, root: type[BaseModel] | None = Recipe) -> Any:
    """Expands the short form of a section to its mapping, so that a key of it can be changed; an empty section too.

    Raises:
        ValueError: the value is not a short form of the section.
    """
    section = section_at(root, path) if root is not None else None
    if section is not None and issubclass(section, Short) and (found := section.spelled_out(value)) is not value:
        return CommentedMap(found)
    return CommentedMap() if value is None else value


def origin_of(origins: Origins, loc: Loc) -> KeyOrigin | None:
    """Returns the origin of a key of the resolved recipe; None: it has its default. A stage has keys of `train` that it
    does not set from the recipe."""
    inherits = loc[0:1] == ("stages",) and loc[3:4] == ("train",)
    return origins.get(loc) or (origins.get(loc[3:]) if inherits else None)


def nearest_origin(origins: Origins, loc: Loc) -> KeyOrigin | None:
    """Returns the origin of a key, or else of the section that would hold it; None: no layer has that."""
    known = (origin_of(origins, loc[:depth]) for depth in range(len(loc), 0, -1))
    return next((found for found in known if found is not None), None)


def place_in(origins: Origins, loc: Loc, message: str, otherwise: Path) -> str:
    """Returns the place of an error, for messages.

    An error of a section is placed at the key that the message names in quotes; else, if several layers set keys of the
    section, at the key that was set last.

    Args:
        loc: the key or section that is wrong; empty: the recipe.
        otherwise: the recipe's file.
    """
    inside = [key for key in reversed(origins) if key[:-1] == loc]
    named = next((origins[key].place for key in inside if f"'{key[-1]}'" in message), None)
    if named is not None:
        return named
    found = nearest_origin(origins, loc)
    if loc and any(found is None or origins[key].layer != found.layer for key in inside):
        return origins[inside[0]].place
    return f"{otherwise}:1" if found is None else found.place


def labels(origins: Origins) -> dict[RecipeLayer, str]:
    """Returns the name of each layer for `agentrl recipe show`: files by as much of their paths as tells them apart."""
    layers = {said.layer for said in origins.values()}
    files = {layer: Path(layer.place).resolve() for layer in layers if layer.name is None}
    return {layer: layer.name or _apart(files[layer], files.values()) for layer in layers}


def _apart(file: Path, files: Iterable[Path]) -> str:
    """The shortest end of a path that no other file has."""
    return next(end for end in _ends(file) if sum(end in _ends(other) for other in set(files)) == 1)


def _ends(file: Path) -> list[str]:
    return [str(Path(*file.parts[-length:])) for length in range(1, len(file.parts) + 1)]


def relative_to(origins: Origins, loc: Loc) -> Path | None:
    """Returns the folder of the relative paths in a key; None: the recipe's."""
    found: KeyOrigin | None = nearest_origin(origins, loc)
    return None if found is None else found.layer.base
