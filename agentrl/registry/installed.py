"""Plug-ins and recipes of installed packages: entry points of the groups `agentrl.KIND` and `agentrl.recipes`.

    [project.entry-points."agentrl.rewards"]
    my-reward = "my_env.task:won"

Nothing is shadowed: a name that two packages offer, or a package and agentrl itself, is an error where a recipe uses
it. Packages are listed by their metadata; the code of a package is imported when a recipe names it.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentrl.registry.references import is_reference
from agentrl.types.errors import RecipeError

RECIPES = "recipes"
"""The kind of recipes. All others are those of `agentrl.registry.kinds`."""
_PREFIX = "agentrl."


@dataclass(frozen=True)
class Offered:
    """Entry point of an installed package.

    Attributes:
        kind: `recipes`, or a kind of plug-in.
        value: its code: `my_env.task:won`; of a recipe, the package that holds `recipe.yaml`.
        package: name and version: `my-env 1.0`.
        summary: what the package says of itself.
    """

    kind: str
    name: str
    value: str
    package: str
    summary: str

    def broken(self, why: str, place: str | None = None, remedy: str | None = None) -> RecipeError:
        """Returns the error for an entry point that cannot be used."""
        said = f"the package {self.package} offers {self.name!r} ({group_of(self.kind)}), which cannot be used: {why}"
        return RecipeError(said, place=place, remedy=remedy or f"update or repair {self.package.partition(' ')[0]}")


def folders_of(module: str) -> list[Path]:
    """Returns the folder of the package that a module is in, or its file if it is in none. A package without
    `__init__.py` may have several folders. No code of the package runs. Empty: it is not there."""
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):  # no name of a module, or a module without a spec
        found = None
    if found is None:
        return []
    if found.submodule_search_locations is not None:
        return [Path(folder) for folder in found.submodule_search_locations]
    return [Path(found.origin)] if found.has_location and found.origin is not None else []


def versions_of(names: Collection[str], folders: Iterable[Path]) -> dict[str, str]:
    """Returns the versions of the packages that offer a plug-in of these names.

    Args:
        folders: of the recipe and its bases: a package that offers the recipe in one of them counts as well.
    """
    used = [each for point in _kinds() for each in offers(point) if point != RECIPES and each.name in names]
    inside = [folder.resolve() for folder in folders]
    for each in offers(RECIPES):
        own = [folder.resolve() for folder in folders_of(each.value)]
        if any(folder.is_relative_to(top) for folder in inside for top in own):
            used.append(each)
    return dict(sorted((package, version) for package, _, version in (each.package.rpartition(" ") for each in used)))


def _kinds() -> set[str]:
    return {each.kind for each in _all(tuple(sys.path))}


def group_of(kind: str) -> str:
    """Returns the group of entry points of a kind: letters, digits, dots and underscores, as the standard asks."""
    return _PREFIX + kind.replace("-", "_")


def offers(kind: str) -> list[Offered]:
    """Returns what installed packages offer of a kind, in the order of `sys.path`."""
    return [each for each in _all(tuple(sys.path)) if group_of(each.kind) == group_of(kind)]


def is_foreign(use: str, kind: str) -> bool:
    """Returns True if a name stands for code that is not agentrl's: a reference, or the plug-in of a package."""
    return is_reference(use) or any(each.name == use for each in offers(kind))


def offered(name: str, kind: str, what: str, built_in: str | None, place: str | None = None) -> Offered | None:
    """Returns the entry point of this name, None if no package has it.

    Args:
        what: the kind in the singular, for messages.
        built_in: the code or the folder of agentrl's own of this name; None: there is none.

    Raises:
        RecipeError: two packages offer this name, or a package and agentrl.
    """
    found = [each for each in offers(kind) if each.name == name]
    owners = {f"the package {each.package}": each.value for each in found}
    if found and built_in is not None:
        owners = {"agentrl itself": built_in, **owners}
    if len(owners) > 1:
        (one, its), (other, others) = list(owners.items())[:2]
        raise RecipeError(
            f"the {what} {name!r} is offered twice: by {one} ({its}) and by {other} ({others})",
            place=place,
            remedy=f"name the one that is meant, {its} or {others}, or uninstall a package",
        )
    return found[0] if found else None


@functools.lru_cache(maxsize=4)
def _all(path: tuple[str, ...]) -> tuple[Offered, ...]:
    """Returns all entry points of agentrl's groups below the folders of `sys.path`, which is the key of the cache."""
    return tuple(_read())


def _read() -> Iterator[Offered]:
    from importlib import metadata  # slow to import

    seen: set[str] = set()  # the first on the path is the one that Python imports
    for package in metadata.distributions():
        try:
            if _PREFIX not in (package.read_text("entry_points.txt") or ""):
                continue
            about = package.metadata
            points = [each for each in package.entry_points if each.group.startswith(_PREFIX)]
        except Exception:  # the metadata of a stranger that is damaged: pip says so, and it is no recipe's business
            continue
        name = str(about["Name"])
        if name in seen:
            continue
        seen.add(name)
        for each in points:
            kind, said = each.group.removeprefix(_PREFIX), about["Summary"] or ""
            yield Offered(kind, each.name, each.value, f"{name} {about['Version']}", str(said))
