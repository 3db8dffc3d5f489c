"""The tree of a recipe, filled layer by layer: its bases, its own file, a profile, and `--set`.

Each layer notes the keys that it sets; keys below them that were there before are forgotten. A key is thus attributed
to the layer that set it, also in a section that several layers set.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError

from agentrl.config.recipe import Recipe
from agentrl.config.sections import Short, section_at
from agentrl.types.errors import REMEDY, RecipeError
from agentrl.types.paths import beside

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


class Problem(NamedTuple):
    """An error of a recipe: the key or section that is wrong, a message and its remedy."""

    loc: tuple[Any, ...]
    message: str
    remedy: str | None = None


@dataclass
class RecipeTree:
    """The sections of a recipe, as they are before they are checked.

    Attributes:
        values: with lines, where they come from YAML.
        files: its own file, the base of that, and so on.
        origins: of the keys that are set, in the order in which they were.
    """

    values: dict[str, Any]
    files: tuple[Path, ...]
    origins: dict[Loc, KeyOrigin] = field(default_factory=dict)

    def lay(self, overlay: Mapping[str, Any], layer: RecipeLayer, *, without: Collection[str] = ()) -> None:
        """Merges a mapping, key by key; an empty tree takes it as it is. Lists and values replace those of the tree.

        An empty value takes out the entry of a mapping, for example a reward. For a key of a section it is the value
        null. A section whose other keys depend on one key (the engine on `use`, the model on `path` and `scratch`) is
        replaced as a whole if the mapping changes that key.

        Args:
            without: keys of the mapping that are left out.
        """
        kept = {key: value for key, value in overlay.items() if key not in without}
        if not self.values:
            self.values = kept
            for key, value in kept.items():
                self.note((str(key),), value, layer, line_of(overlay, key))
            return
        for loc, value, line in _merged(self.values, kept, overlay, (), None):
            self.note(loc, value, layer, line)

    def set(self, override: str) -> None:
        """Sets one key: `path.to.key=value`.

        Raises:
            RecipeError: the text is not an override, or leads into a value.
        """
        key, value = set_in(self.values, override, Recipe)
        self.note(key, value, RecipeLayer(f"--set {override}", "--set", Path.cwd()))

    def note(self, loc: Loc, value: Any, layer: RecipeLayer, line: int | None = None) -> None:
        """Notes that a layer set a key, and all keys of its value.

        Args:
            value: as it is written, for the lines in it.
            line: of the key.
        """
        for key in [key for key in self.origins if key[: len(loc)] == loc]:
            del self.origins[key]
        self.origins[loc] = KeyOrigin(layer, line)
        try:
            spelled = None if value is None else spelled_out(loc, value)
        except ValueError:  # the check of the recipe tells it
            spelled = value
        for key, item in _items(spelled):
            self.note((*loc, str(key)), item, layer, _line_in(value, key, line))

    def origin_of(self, loc: Loc) -> KeyOrigin | None:
        """Returns the origin of a key of the resolved recipe; None: it has its default. A stage has keys of `train`
        that it does not set from the recipe."""
        inherits = loc[0:1] == ("stages",) and loc[3:4] == ("train",)
        return self.origins.get(loc) or (self.origins.get(loc[3:]) if inherits else None)

    def nearest_origin(self, loc: Loc) -> KeyOrigin | None:
        """Returns the origin of a key, or else of the section that would hold it; None: no layer has that."""
        known = (self.origin_of(loc[:depth]) for depth in range(len(loc), 0, -1))
        return next((found for found in known if found is not None), None)

    def place_of(self, loc: Loc, message: str) -> str:
        """Returns the place of an error, for messages.

        An error of a section is placed at the key that the message names in quotes; else, if several layers set keys of
        the section, at the key that was set last.

        Args:
            loc: the key or section that is wrong; empty: the recipe.
        """
        inside = [key for key in reversed(self.origins) if key[:-1] == loc]
        named = next((self.origins[key].place for key in inside if f"'{key[-1]}'" in message), None)
        if named is not None:
            return named
        found = self.nearest_origin(loc)
        if loc and any(found is None or self.origins[key].layer != found.layer for key in inside):
            return self.origins[inside[0]].place
        return f"{self.files[0]}:1" if found is None else found.place

    def refusal(self, problems: Iterable[Problem]) -> RecipeError:
        """Makes one error of all problems, each with its place."""
        first, *others = [
            RecipeError(
                f"{'.'.join(map(str, each.loc)) or 'recipe'}: {each.message}",
                place=self.place_of(tuple(map(str, each.loc)), each.message),
                remedy=each.remedy,
            )
            for each in problems
        ]
        if not others:
            return first
        remedy = "" if first.remedy is None else f"{REMEDY}{first.remedy}"
        return RecipeError("\n".join([f"{first.message}{remedy}", *map(str, others)]), place=first.place)

    def resolved(self, path: Any, loc: Loc, base: Path) -> Any:
        """Resolves a path that begins with `./` or `../`: relative to the folder of the layer that set the key.

        Args:
            base: the recipe's folder.
        """
        found = self.nearest_origin(loc)
        folder = None if found is None else found.layer.base
        return beside(path, folder or base) if isinstance(path, str) else path

    def labels(self) -> dict[RecipeLayer, str]:
        """Returns the name of each layer for `agentrl recipe show`: files by as much of their paths as tells them
        apart."""
        layers = {said.layer for said in self.origins.values()}
        files = {layer: Path(layer.place).resolve() for layer in layers if layer.name is None}
        return {layer: layer.name or _apart(files[layer], files.values()) for layer in layers}


def _apart(file: Path, files: Iterable[Path]) -> str:
    """The shortest end of a path that no other file has."""
    return next(end for end in _ends(file) if sum(end in _ends(other) for other in set(files)) == 1)


def _ends(file: Path) -> list[str]:
    return [str(Path(*file.parts[-length:])) for length in range(1, len(file.parts) + 1)]


def _items(node: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(node, Mapping):
        return node.items()
    return enumerate(node) if isinstance(node, list) else ()


def _line_in(written: Any, key: Any, otherwise: int | None) -> int | None:
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


def _merged(
    tree: dict[str, Any], overlay: Mapping[str, Any], lines: Any, above: Loc, line: int | None
) -> Iterator[tuple[Loc, Any, int | None]]:
    """Merges a mapping in place; yields path, value and line of every key that was set, sections before their keys.

    Args:
        lines: the mapping as it is written.
        line: of the section that it is.
    """
    for key, value in overlay.items():
        loc, at = (*above, str(key)), _line_in(lines, key, line)
        old = spelled_out(loc, tree.get(key))
        new = value if value is None or _are_settings(value, old) else spelled_out(loc, value)
        section = section_at(Recipe, loc)
        if isinstance(new, Mapping) and isinstance(old, dict) and not _is_another(section, old, new):
            if tree.get(key) is None:
                yield loc, {}, at
            tree[key] = old
            yield from _merged(old, new, value, loc, at)
        elif value is None and key in tree and not _is_key(key, above):
            del tree[key]
            yield loc, value, at
        else:
            tree[key] = copy.deepcopy(new)
            yield loc, value, at


def _are_settings(new: Any, old: Any) -> bool:
    """Returns True if `{key: value}` is one setting of the plug-in that is there, and not another plug-in by name."""
    return isinstance(new, Mapping) and len(new) == 1 and isinstance(old, dict) and next(iter(new)) in old


def _is_key(key: str, above: Loc) -> bool:
    """Returns True if a section has this key; False for entries of a mapping and settings of a plug-in."""
    section = section_at(Recipe, above)
    return section is not None and key in section.model_fields


def _is_another(section: type[BaseModel] | None, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Returns True if a layer's section has the name of another thing than the tree's."""
    named_by: tuple[str, ...] = getattr(section, "named_by", ())
    fields = section.model_fields if section is not None else {}
    return any(key in new and new[key] != old.get(key, fields[key].default) for key in named_by)


def set_in(tree: Any, override: str, root: type[BaseModel] | None = None) -> tuple[Loc, Any]:
    """Sets one value in a tree, `path.to.key=value`; returns its key and the value.

    Args:
        root: the section of the tree, whose short forms are expanded on the way.

    Raises:
        RecipeError: the text is not an override, or leads into a value.
    """
    key, equals, text = override.partition("=")
    place = f"--set {override}"
    if not equals or not key:
        raise RecipeError(f"{override!r} is not an override", place=place, remedy="write path.to.key=value")
    path, at = tuple(key.split(".")), tree
    try:
        value = YAML(typ="safe").load(text) if text else None
    except MarkedYAMLError as error:
        raise RecipeError(f"{text!r} is not a YAML value: {error.problem}", place=place) from None
    for depth, part in enumerate(path):
        where = ".".join(path[:depth])
        if isinstance(at, list):
            if not part.isdigit() or int(part) >= len(at):
                raise RecipeError(f"{where} is a list of {len(at)}; {part!r} is not an index", place=place)
        elif not isinstance(at, dict):
            raise RecipeError(f"{where} is a value and has no {part!r}", place=place)
        slot: Any = int(part) if isinstance(at, list) else part
        if depth < len(path) - 1:
            found = at.get(slot) if isinstance(at, dict) else at[slot]
            try:
                at[slot] = at = spelled_out(path[: depth + 1], found, root)
            except ValueError as error:
                raise RecipeError(f"{'.'.join(path[: depth + 1])}: {error}", place=place) from None
            continue
        at[slot] = value
    return path, value
