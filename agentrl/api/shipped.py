"""The built-in recipes: what each is, what it needs, and whether its episodes can be played on this machine.

Environments are those of the built-in recipes, and those that installed packages offer.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from agentrl.api.certify.certificate import told
from agentrl.config.bases import read_recipe
from agentrl.config.files import METHODS, method_files, method_name
from agentrl.config.loader import load_recipe
from agentrl.config.model import package_of
from agentrl.config.recipe import AboutSettings
from agentrl.registry.installed import RECIPES, Offered, offers
from agentrl.rollouts.builder import build
from agentrl.sandbox.images import image_named, is_built
from agentrl.types.errors import AgentRLError, described, place_of
from agentrl.types.packages import lacking
from agentrl.types.paths import data_path

_GETS = re.compile(r"(pip install|apt-get install|agentrl sandbox build)\s+(.+)")
_PROGRAMS = {
    "chromium-headless-shell": ("chromium-headless-shell", "chrome-headless-shell", "chromium", "google-chrome"),
    "default-jre-headless": ("java",),
    "xvfb": ("Xvfb",),
}
"""By package of Debian: programs of which one will do, wherever it comes from."""

_INSTALLED = Path("/var/lib/dpkg/info")
"""A list of files for each package of Debian that is installed."""


@dataclass(frozen=True)
class ShippedRecipe:
    """A built-in recipe.

    Attributes:
        name: as commands take it: a folder, or `folder/file.yaml`.
        does: the first sentence of its `task.py`.
        trains: what the policy learns.
        size: of a training: the model, the episodes, the time.
        measured: what a training gave; None: no policy has learned it.
        sandbox: True if an episode needs one.
        needs: packages and images, by the commands of its page that get them.
        model: the package of its model, if that is one.
    """

    name: str
    does: str
    trains: str | None
    size: str | None
    measured: str | None
    sandbox: bool
    needs: dict[str, list[str]]
    model: str | None = None

    @property
    def network(self) -> str:
        """Needs of a network: `no` (on no machine), `to install` (something is missing here), `installed`.

        Episodes of built-in recipes take none.
        """
        if not self.needs and self.model is None:
            return "no"
        return "to install" if self.lacks or (self.model is not None and lacking(self.model)) else "installed"

    @property
    def lacks(self) -> dict[str, list[str]]:
        """Missing packages and programs, by the command that installs them."""
        found = {
            command: [item for item in items if not _there(command, item)] for command, items in self.needs.items()
        }
        return {command: items for command, items in found.items() if items}


@dataclass(frozen=True)
class ShippedEnvironment:
    """The environment of a built-in recipe, or of a package.

    Attributes:
        certificate: what `agentrl env check` found.
        why_not: why its episodes cannot be played here, with the remedy; None: they can.
        package: the package that offers it, with its version; None: it is built in.
    """

    name: str
    does: str
    certificate: str
    why_not: str | None
    package: str | None = None


def shipped_recipes() -> list[ShippedRecipe]:
    """Returns the built-in recipes: those that a policy has learned first, each part by name."""
    found = [_shipped(path) for path in data_path("recipes").glob("*/*.yaml") if path.parent.name != METHODS]
    return sorted(found, key=lambda recipe: (recipe.measured is None, recipe.name))


@dataclass(frozen=True)
class ShippedMethod:
    """A built-in method: a recipe that adds what a paper publishes to another recipe.

    Attributes:
        name: as commands take it.
        paper: name and arXiv number.
        acts: what the method changes, in a few words.
        base: the recipe that it is added to.
        certainty: A, B or C, as `about.certainty` of recipes.
        differs: what differs from the paper.
    """

    name: str
    paper: str
    acts: str
    base: str
    certainty: str
    differs: str | None


def shipped_methods() -> list[ShippedMethod]:
    """Returns the built-in methods by name."""
    return [_method(path) for path in method_files()]


def _method(path: Path) -> ShippedMethod:
    found = read_recipe(path)
    about = AboutSettings.model_validate(found.values["about"])
    assert about.paper is not None
    assert about.certainty is not None
    base = _name(found.files[-1])
    return ShippedMethod(method_name(path), about.paper, about.trains or "", base, about.certainty, about.differs)


def shipped_environments() -> list[ShippedEnvironment]:
    """Returns the built-in environments with a certificate, and all of installed packages.

    Imports their code and asks their sandbox backend. What a package offers and cannot be used has its error as reason.
    """
    found = []
    for recipe in sorted(shipped_recipes(), key=lambda recipe: recipe.name):
        loaded = load_recipe(recipe.name)
        if (certificate := told(loaded)) is not None:
            found.append(ShippedEnvironment(loaded.name, recipe.does, certificate, _why_not(recipe)))
    return [*found, *map(_of_package, offers(RECIPES))]


def _of_package(own: Offered) -> ShippedEnvironment:
    try:
        certificate, why_not = told(load_recipe(own.name)) or f"no: agentrl env check {own.name}", _unbuilt(own.name)
    except AgentRLError as error:
        certificate, why_not = "unknown", str(error)
    except Exception as error:  # code of the package
        certificate, why_not = "unknown", described(type(error).__name__, str(error), place_of(error))
    return ShippedEnvironment(own.name, own.summary, certificate, why_not, own.package)


def _shipped(path: Path) -> ShippedRecipe:
    written = YAML(typ="safe").load(path.read_text())
    about = AboutSettings.model_validate(written.get("about") or {})
    package = package_of(str((written.get("model") or {}).get("path") or ""))
    needs, does = _needs(path.parent / "README.md"), _does(path.parent / "task.py")
    return ShippedRecipe(_name(path), does, about.trains, about.size, about.measured, about.sandbox, needs, package)


def _why_not(recipe: ShippedRecipe) -> str | None:
    for command, items in recipe.lacks.items():
        return f"{', '.join(items)} missing: {command}"
    return _unbuilt(recipe.name)


def _unbuilt(name: str) -> str | None:
    """Returns why the parts of a recipe cannot be built here; None: they can."""
    try:
        build(load_recipe(name)).open_backend()
    except AgentRLError as error:
        return error.message if error.remedy is None else f"{error.message}: {error.remedy}"
    return None


def _name(path: Path) -> str:
    return path.parent.name if path.name == "recipe.yaml" else f"{path.parent.name}/{path.name}"


def _does(code: Path) -> str:
    text = ast.get_docstring(ast.parse(code.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def installs(page: Path) -> list[str]:
    """Returns the commands at the head of a recipe's page that install packages."""
    return [command for command in _needs(page) if command.startswith("pip install")]


def _needs(page: Path) -> dict[str, list[str]]:
    """Returns what the commands at the head of a recipe's page install, by command."""
    if not page.is_file():
        return {}
    found: dict[str, list[str]] = {}
    for line in _code(page.read_text()):
        if (got := _GETS.fullmatch(line)) is not None:
            words = [word.strip("'\"") for word in got[2].split() if not word.startswith("-")]
            found[line] = words
    return found


def _code(text: str) -> Iterator[str]:
    """Yields the commands of a page, without comments; a line may hold several."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("    "):
            for command in line.partition("#")[0].split(";"):
                yield " ".join(command.split())


def _there(command: str, item: str) -> bool:
    """Returns True if a command need not be run for this package or image."""
    if command.startswith("pip"):
        return not lacking(item)
    if command.startswith("apt-get"):
        programs = _PROGRAMS.get(item, ())
        return any(map(shutil.which, programs)) or any(_INSTALLED.glob(f"{item}[.:]*list"))
    return is_built(image_named(item))
