"""Indexes of these tests are kept in a folder of their own, never in the user's cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True, scope="module")
def cache(cache_folder: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:  # no longer than this module: others use the real one
        patch.setenv("AGENTRL_CACHE", str(cache_folder))
        yield cache_folder / "search"
