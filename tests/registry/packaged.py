"""Installed packages for tests: a folder of `sys.path` with modules and the metadata of a distribution."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest


class Packages:
    """Packages that are installed while a test runs."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch

    def install(self, name: str, points: Mapping[str, str], files: Mapping[str, str] = {}) -> Path:
        """Installs version 1.0 of a package.

        Args:
            points: entry points: `{"agentrl.rewards: mine": "my_env:mine"}`.
            files: text by path below `site-packages`.

        Returns:
            Its folder, which is new on `sys.path`.
        """
        site = self._folder / f"site-{name}"
        about = site / f"{name.replace('-', '_')}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nSummary: Toys of {name}.\n"
        )
        lines = [f"[{key.partition(': ')[0]}]\n{key.partition(': ')[2]} = {value}" for key, value in points.items()]
        (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for path, text in files.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)
        self._patch.syspath_prepend(str(site))
        return site


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    """Installs packages for one test."""
    return Packages(tmp_path, monkeypatch)
