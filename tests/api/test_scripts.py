"""A script that does not exist is refused before a run directory is made."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentrl
from agentrl.types.errors import RecipeError
from tests.counting import write


def test_an_unknown_script_leaves_no_run(tmp_path: Path) -> None:
    recipe = write(tmp_path / "counting")
    with pytest.raises(RecipeError, match="has no script 'oracel'") as refused:
        agentrl.rollout(str(recipe), 2, script="oracel", out=tmp_path / "run", reporters=())
    assert "oracle" in (refused.value.remedy or "")
    assert not (tmp_path / "run").exists()
