"""Optional packages: the versions that the extras of this package require."""

from __future__ import annotations

import functools
import importlib.metadata
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from agentrl.types.distribution import DISTRIBUTION

_LOWEST = (">=", "~=", "==")


@dataclass(frozen=True)
class Installed:
    """Installed package of an extra.

    Attributes:
        wanted: requirement in pip's syntax: `gymnasium>=1.1`.
        too_old: whether it is below the lowest version that is wanted.
        too_new: whether it is outside for another reason. It may work: untested.
    """

    name: str
    version: str
    extra: str
    wanted: str
    too_old: bool
    too_new: bool


def installed(extra: str) -> list[Installed]:
    """Returns the installed packages of an extra."""
    return [found for requirement in _wanted().get(extra, []) if (found := _look(requirement, extra))]


def installed_package(name: str) -> Installed | None:
    """Returns a package of any extra; None if no extra names it, or it is not installed."""
    for extra, requirements in _wanted().items():
        for requirement in requirements:
            if canonicalize_name(requirement.name) == canonicalize_name(name):
                return _look(requirement, extra)
    return None


def extras() -> list[str]:
    """Returns the names of the extras for users."""
    return [extra for extra in _wanted() if extra != "dev"]


def lacking(requirement: str) -> list[str]:
    """Returns the distributions of a requirement that are not installed: `PACKAGE==1.0`, `agentrl-framework[EXTRA]`."""
    wanted = Requirement(requirement)
    if canonicalize_name(wanted.name) != DISTRIBUTION:
        return [] if _is_installed(wanted.name) else [wanted.name]
    every = [each.name for extra in sorted(wanted.extras) for each in _wanted().get(extra, [])]
    return [name for name in every if canonicalize_name(name) != DISTRIBUTION and not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@functools.cache
def _wanted() -> dict[str, list[Requirement]]:
    """Returns requirements by extra. Empty if this package is not installed."""
    try:
        about = importlib.metadata.metadata(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return {}
    known = [Requirement(text) for text in about.get_all("Requires-Dist") or []]
    optional = [each for each in known if each.marker is not None and "extra" in str(each.marker)]
    return {
        extra: [each for each in optional if each.marker is not None and each.marker.evaluate({"extra": extra})]
        for extra in about.get_all("Provides-Extra") or []
    }


def _look(requirement: Requirement, extra: str) -> Installed | None:
    try:
        version = Version(importlib.metadata.version(requirement.name))
    except importlib.metadata.PackageNotFoundError:
        return None
    bounds = [Version(each.version) for each in requirement.specifier if each.operator in _LOWEST]
    too_old = any(version < bound for bound in bounds)
    fits = requirement.specifier.contains(version, prereleases=True)
    wanted = f"{requirement.name}{requirement.specifier}"
    return Installed(requirement.name, str(version), extra, wanted, too_old, not too_old and not fits)
