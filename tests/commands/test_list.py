"""`agentrl list`: what there is of every kind, what can be set about it, where its code is."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.commands.plug_ins import kinds, plug_ins
from agentrl.registry.kinds import KINDS, registry_of
from agentrl.registry.listing import entries
from agentrl.registry.registry import Registry
from agentrl.types.errors import RecipeError
from tests.command import agentrl as command


@pytest.mark.parametrize("kind", KINDS)
def test_every_built_in_is_one_and_its_source_is_its_definition(kind: str) -> None:
    for entry in entries(registry_of(kind)):
        assert entry.missing is None, entry
        path, _, line = entry.source.rpartition(":")
        assert Path(path).read_text().splitlines()[int(line) - 1].startswith(("def ", "class ", "async def ")), entry
        assert entry.does, entry


def test_settings_have_types_and_defaults() -> None:
    (gigpo,) = [row for row in plug_ins("estimators") if row["name"] == "gigpo"]
    settings = {each["name"]: each for each in gigpo["settings"]}
    assert (settings["gamma"]["type"], settings["gamma"]["default"]) == ("float", 0.95)
    assert (gigpo["about"]["granularity"], gigpo["about"]["needs"]) == ("turn", ["state"])
    (game,) = [row for row in plug_ins("tools") if row["name"] == "game"]
    assert [each["name"] for each in game["settings"] if each["required"]] == ["library"]


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    shown = command("list", "tools", cwd=tmp_path).stdout
    assert "timeout_s: float = 60.0" in shown
    assert "tools/builtin/shell.py:" in shown
    assert "- fetch(id: string): Read one document whole.\n        id: The id that a search showed" in shown
    assert [row["name"] for row in json.loads(command("list", "--json", cwd=tmp_path).stdout)] == [*KINDS]
    assert "volcengine/verl" in command("list", "estimators", cwd=tmp_path).stdout


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'estimators'"):
        plug_ins("estimator")


def test_what_cannot_be_imported_here_says_why() -> None:
    broken: Registry[Any] = Registry(
        "x", "x", {"a": "agentrl.tools.builtin.shell:Missing"}, "a class", lambda found: found
    )
    (entry,) = entries(broken)
    assert "has no 'Missing'" in (entry.missing or "")


@pytest.mark.slow
def test_every_registry_is_a_kind() -> None:
    """A registry that `agentrl list` does not know is a second rule."""
    package = Path(agentrl.__file__).parent
    made = {
        f"agentrl.{'.'.join(path.relative_to(package).with_suffix('').parts)}:{ast.unparse(node.target)}"
        for path in package.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("Registry[")
    }
    assert made == set(KINDS.values())


@pytest.mark.slow
def test_kinds_are_told_without_torch() -> None:
    code = "import sys\nfrom agentrl.commands.plug_ins import kinds\nkinds()\nassert 'torch' not in sys.modules\n"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {row["name"] for row in kinds()} == set(KINDS)
