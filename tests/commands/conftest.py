"""The counting recipe (tests/counting.py), which most commands are tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint import trained_model, trained_run
from tests.counting import CODE, RECIPE, TRAINING, write

__all__ = ["CODE", "RECIPE", "trained_model", "trained_run"]


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """The folder of the recipe; the parent is where commands run."""
    return write(tmp_path / "counting")


@pytest.fixture
def trainable(tmp_path: Path) -> Path:
    """The folder of the recipe with all that training needs."""
    return write(tmp_path / "counting", TRAINING)
