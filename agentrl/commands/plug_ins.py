"""`agentrl list`: the kinds of plug-ins, and the plug-ins of each."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from agentrl.chat.formats.parser import signature_lines
from agentrl.registry.kinds import KINDS, registry_of
from agentrl.registry.listing import entries


def kinds() -> list[dict[str, Any]]:
    """Returns every kind of plug-in: its key in the recipe, its requirement, the built-ins, and names that installed
    packages offer, with the package of each."""
    rows = []
    for name in KINDS:
        registry = registry_of(name)
        own = {each.name: each.package for each in registry.offers()}
        row = {"name": name, "key": registry.key, "wanted": registry.wanted, "built_in": [*registry.built_in]}
        rows.append({**row, "packages": own})
    return rows


def plug_ins(kind: str) -> list[dict[str, Any]]:
    """Returns the plug-ins of a kind.

    Raises:
        RecipeError: the kind does not exist.
    """
    rows = [asdict(entry) for entry in entries(registry_of(kind))]
    plain: list[dict[str, Any]] = msgspec.to_builtins(rows, enc_hook=repr, builtin_types=())
    return plain


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Prints kinds, or plug-ins of a kind, for people: the name, and the details below it."""
    for row in rows:
        package = f" ({row['package']})" if row.get("package") else ""
        print(f"{row['name']}{package}  {row.get('source') or row.get('key', '')}")
        for line in _lines(row):
            print(f"    {line}")


def _lines(row: dict[str, Any]) -> list[str]:
    if "key" in row:
        own = ", ".join(f"{name} ({package})" for name, package in row["packages"].items())
        lines = [f"wanted: {row['wanted']}", f"built-in: {', '.join(row['built_in'])}"]
        return [*lines, *([f"of packages: {own}"] if own else [])]
    if row["missing"]:
        return [f"not here: {line}" for line in row["missing"].splitlines()]
    about = dict(row["about"])
    functions = signature_lines(about.pop("functions", ())).splitlines()
    said = [f"{key}: {_shown(value)}" for key, value in about.items() if value not in (None, "", [], False)]
    return [line for line in (row["does"], *map(_setting, row["settings"]), *functions, "; ".join(said)) if line]


def _setting(setting: dict[str, Any]) -> str:
    value = "(required)" if setting["required"] else f"= {setting['default']!r}"
    note = f"  # {setting['description']}" if setting["description"] else ""
    return f"{setting['name']}: {setting['type']} {value}{note}"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "yes" if value is True else str(value)
