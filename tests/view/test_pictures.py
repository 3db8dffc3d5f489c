"""Pictures without matplotlib, which the core does not install."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.types.errors import MissingExtra
from agentrl.view.curves import learning_curve, metric_curves
from agentrl.view.values import draw_values


@dataclass(frozen=True)
class ValuedTurn:
    turn: int = 0
    value: float = 0.5
    value_error: float = 0.1
    worth: float = 0.0
    worth_error: float = 0.1
    credit: float | None = None


@pytest.fixture
def _no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.backends.backend_agg", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("_no_matplotlib")
def test_a_picture_without_matplotlib_names_the_extra_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "picture.png"
    with pytest.raises(MissingExtra, match=r"(?s)matplotlib is not installed.*\[train\]"):
        learning_curve([{"iteration": 0, "reward": 0.5}], out, "house")
    with pytest.raises(MissingExtra, match=r"(?s)matplotlib is not installed.*\[train\]"):
        metric_curves({"loss": [(0.0, 1.0)]}, out, "house")
    with pytest.raises(MissingExtra, match=r"(?s)matplotlib is not installed.*\[train\]"):
        draw_values([ValuedTurn()], out, "house", "grpo")
    assert not out.exists()
