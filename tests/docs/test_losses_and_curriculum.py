"""The tables of docs/losses.md, docs/stages.md and docs/curriculum.md name everything there is, and its settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.curriculum.registry import PARTS
from agentrl.training.losses.registry import LOSSES, PREFERENCE_LOSSES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", LOSSES.built_in)
def test_losses_and_their_settings_are_in_the_table(name: str) -> None:
    text = (DOCS / "losses.md").read_text()
    row = re.search(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
    assert row is not None
    if "the same" not in row.group().lower() and "as `gspo`" not in row.group():
        assert all(setting in row.group() for setting in LOSSES.find(name).settings.model_fields)


@pytest.mark.parametrize("name", PREFERENCE_LOSSES.built_in)
def test_preference_losses_and_their_settings_are_in_the_table(name: str) -> None:
    row = re.search(rf"^\| `{name}` \|.*$", (DOCS / "stages.md").read_text(), re.MULTILINE)
    assert row is not None
    assert [key for key in PREFERENCE_LOSSES.find(name).settings.model_fields if key not in row.group()] == []


@pytest.mark.parametrize("name", PARTS.built_in)
def test_parts_and_their_settings_are_in_the_table(name: str) -> None:
    text = (DOCS / "curriculum.md").read_text()
    row = re.search(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
    assert row is not None
    kind = PARTS.find(name)
    # `before`, the text in front of a hint, is for the docstring.
    assert all(setting in row.group() for setting in kind.Settings.model_fields if setting != "before")
