"""The packages of `make gpu`: which it brings along (wheels.txt), and which the machine has (machine.txt)."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = ("agentrl", "benchmarks", "scripts", "tests")


def listed(name: str) -> dict[str, str]:
    """Names, in the form of pip's, and pinned versions ("" without) of a list beside this file."""
    lines = (line.partition("#")[0].strip() for line in (HERE / name).read_text().splitlines())
    pairs = (line.partition("==") for line in lines if line)
    return {canonical(package): version for package, _, version in pairs}


def canonical(name: str) -> str:
    """A package's name in the one form that compares (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def beyond() -> dict[str, list[str]]:
    """Lists what is installed here but neither brought along nor on the machine: top-level modules, and packages.

    A module that several packages share is hidden only if none of them is listed; so is one that no package has.
    """
    own = listed("wheels.txt").keys() | listed("machine.txt").keys()
    providers = importlib.metadata.packages_distributions()
    modules = [module for module, names in providers.items() if not own & {canonical(name) for name in names}]
    packages = {canonical(name) for names in providers.values() for name in names} - own
    return {"modules": sorted(module for module in modules if module not in PROJECT), "packages": sorted(packages)}
