"""docs/credit.md names every estimator, and its pictures are what the stated command draws."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

from agentrl.estimators.registry import ESTIMATORS

BUILT_IN = ESTIMATORS.all()

DOCS = Path(__file__).parents[2] / "docs"


def test_every_estimator_is_described_and_drawn(tmp_path: Path) -> None:
    page = (DOCS / "credit.md").read_text()
    assert [name for name in BUILT_IN if f"`{name}`" not in page] == []

    spec = importlib.util.spec_from_file_location("draw", DOCS / "credit" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    assert sorted(itertools.chain(*draw.FAMILIES.values())) == sorted(BUILT_IN)
    draw.main(tmp_path)
    for family in draw.FAMILIES:
        assert f"credit/{family}.svg" in page
        drawn, kept = (folder / f"{family}.svg" for folder in (tmp_path, DOCS / "credit"))
        assert drawn.read_text() == kept.read_text(), "run: python docs/credit/draw.py"
