"""A model of the Hub on a machine that lacks the package, the disk or a part of the model. Asks no hub."""

from __future__ import annotations

import errno
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.models.hub import commit_of, download, in_cache
from agentrl.models.load import fetch_model
from agentrl.types.errors import MissingExtra, RecipeError

NAME = "of-nobody/small"


def give(monkeypatch: pytest.MonkeyPatch, snapshot: Callable[..., str]) -> None:
    """Makes a function stand in for that of huggingface_hub."""
    hub = pytest.importorskip("huggingface_hub", reason="pip install 'agentrl-framework[train]'")
    monkeypatch.setattr(hub, "snapshot_download", snapshot)


def test_without_huggingface_hub_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert in_cache(NAME, None) is None
    with pytest.raises(MissingExtra, match=r"huggingface_hub[\s\S]*agentrl-framework\[train\]"):
        fetch_model(NAME)


def test_a_full_disk_is_no_fault_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    error: OSError = OSError(errno.ENOSPC, "No space left on device")

    def snapshot(*arguments: Any, **settings: Any) -> str:
        raise error

    give(monkeypatch, snapshot)
    with pytest.raises(OSError, match="No space left") as full:
        download(NAME, None)
    assert full.value is error
    error = OSError(errno.ECONNREFUSED, "Connection refused")
    with pytest.raises(RecipeError, match="cannot be downloaded") as away:
        download(NAME, None)
    assert "hf download of-nobody/small" in str(away.value.remedy)


def test_a_snapshot_in_the_cache_without_its_configuration_is_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program leaves it that took the weights alone."""
    place = tmp_path / "snapshots" / ("0" * 40)
    place.mkdir(parents=True)
    (place / "model.safetensors").touch()
    give(monkeypatch, lambda *arguments, **settings: str(place))
    assert in_cache(NAME, None) is None
    (place / "config.json").write_text("{}")
    assert in_cache(NAME, None) == place
    assert commit_of(place) == "0" * 40
