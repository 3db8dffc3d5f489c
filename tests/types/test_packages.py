"""Packages that extras name: missing, too old, too new."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl.commands import doctor
from agentrl.tools.builtin.games.libraries import require
from agentrl.types import packages
from agentrl.types.errors import AgentRLError, MissingExtra, needs, require_versions


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Versions of packages that are said to be installed, by name."""
    said: dict[str, str] = {}
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: said.get(name) or real(name))
    require_versions.cache_clear()
    yield said
    require_versions.cache_clear()


def test_what_is_installed_here_fits() -> None:
    wrong = [found for extra in packages.extras() for found in packages.installed(extra) if found.too_old]
    assert wrong == []
    assert {found.name for found in packages.installed("lora")} == {"peft"}
    assert packages.installed_package("open_spiel") == packages.installed_package("Open-Spiel") is not None
    assert packages.installed_package("hashids") is None


def test_a_package_that_is_too_old_names_its_extra(installed: dict[str, str]) -> None:
    installed["peft"] = "0.16.9"
    with (
        pytest.raises(MissingExtra, match=r"peft 0.16.9 is installed, which is too old\n  -> .*framework\[lora\]'"),
        needs("lora"),
    ):
        import peft  # noqa: F401


def test_an_old_package_that_lacks_what_is_imported_is_said_to_be_old(installed: dict[str, str]) -> None:
    installed["peft"] = "0.1"
    with pytest.raises(MissingExtra, match=r"peft 0.1 is installed, which is too old"), needs("lora"):
        from peft import NothingSuch  # type: ignore[attr-defined]
    installed.clear()
    with pytest.raises(ImportError, match="NothingSuch"), needs("lora"):
        from peft import NothingSuch  # type: ignore[attr-defined]  # noqa: F401


def test_a_newer_package_is_used_and_the_doctor_tells(installed: dict[str, str]) -> None:
    installed["transformers"] = "99.0"
    with needs("train"):
        pass
    found = next(each() for each in doctor.CHECKS if each is doctor._versions)
    assert not found.ok
    assert "transformers 99.0 (train wants transformers" in found.found
    assert found.fix.startswith("pip install 'transformers")


def test_libraries_of_games_are_checked(installed: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    require("minigrid", "minigrid")
    installed["minigrid"] = "1.0"
    with pytest.raises(MissingExtra, match=r"minigrid 1.0 is installed.*\n  -> pip install '.*-framework\[games\]'"):
        require("minigrid", "minigrid")
    real = importlib.util.find_spec

    def find(name: str) -> Any:
        return None if name == "tatsu" else real(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(AgentRLError, match=r"tatsu is not installed\n  -> pip install --no-deps textworld && pip"):
        require("json tatsu", "--no-deps textworld && pip install tatsu")
