"""docs/metrics.md says where each metric is made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| `([\w/@^=]+)`.*\| `([\w/.]+)` \|$", (ROOT / "docs" / "metrics.md").read_text(), re.M)


def test_every_row_has_a_file() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert len(ROWS) == len(re.findall(r"^\| `", page, re.M))


@pytest.mark.parametrize(("metric", "file"), ROWS)
def test_it_is_made_there(metric: str, file: str) -> None:
    """Under its name; `NAME` and `PART` stand for names of components and parts."""
    name = re.sub(r"/?[A-Z]+(=[A-Z]+)?_?", "", metric)
    assert name in (ROOT / "agentrl" / file).read_text()
