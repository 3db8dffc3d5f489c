"""What docs/generate.py writes is what is committed."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import agentrl
from tests.command import commands

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The module docs/generate.py."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # generates all of them
def test_the_files_are_up_to_date(generate: ModuleType) -> None:
    try:
        written = generate.written()
    except RuntimeError as error:
        pytest.skip(str(error))
    stale = [
        str(path.relative_to(ROOT)) for path, text in written.items() if not path.is_file() or path.read_text() != text
    ]
    assert stale == [], "run: python docs/generate.py"


def test_every_command_and_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    assert sorted(re.findall(r"^## agentrl (.+)$", page, re.MULTILINE)) == sorted(commands())
    names = re.findall(r"^::: [\w.]+\.(\w+)$", (ROOT / "docs/reference/api.md").read_text(), re.MULTILINE)
    assert sorted(names) == sorted(agentrl.__all__)


def test_the_skills_are_for_coding_agents() -> None:
    skills = sorted((ROOT / "docs/skills").glob("*/SKILL.md"))
    assert [path.parent.name for path in skills] == ["make-an-environment", "read-a-run", "train"]
    for path in skills:
        head = re.match(r"---\nname: ([\w-]+)\ndescription: (.+)\n---\n", path.read_text())
        assert head is not None
        assert head[1] == path.parent.name
        assert str(path.relative_to(ROOT)) in (ROOT / "AGENTS.md").read_text()
        named = re.findall(r"`agentrl ((?:recipe|env|sandbox|search) \w+|\w+)", path.read_text())
        assert set(named) <= set(commands())
