"""The counting recipe (tests/counting.py), which most commands are tried on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.view import curves
from tests.checkpoint import trained_model, trained_run
from tests.counting import CODE, RECIPE, TRAINING, write

__all__ = ["CODE", "RECIPE", "trained_model", "trained_run"]


@pytest.fixture(autouse=True)
def _short() -> Iterator[None]:
    """Leaves out what takes longer than a small training in this process, as tests/fork_server.py does in another: the
    picture of its curve, and a look of the garbage collector at all that is imported here."""
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        patch.setattr(curves, "learning_curve", lambda *metrics, **how: None)
        yield
    gc.unfreeze()


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """The folder of the recipe; the parent is where commands run."""
    return write(tmp_path / "counting")


@pytest.fixture
def trainable(tmp_path: Path) -> Path:
    """The folder of the recipe with all that training needs."""
    return write(tmp_path / "counting", TRAINING)


@pytest.fixture
def warm(trained_model: Path) -> list[str]:
    """Overrides with which a training begins with a policy that was trained a little, and demonstrates nothing."""
    return [f"model={{path: {trained_model}}}", "warm_start=null"]
