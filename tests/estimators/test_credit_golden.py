"""Numbers that the authors' own code gave, at the tolerance that each file states.

`pytest tests/estimators --golden DIR` runs every file of another set in the same format. A file that no row of `CHECKS`
is for fails: nothing is passed over in silence.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.estimators import golden_trajectory, golden_turn
from tests.estimators.golden import Check, Golden
from tests.estimators.golden_losses import losses
from tests.estimators.golden_scalars import scalar_tables

CHECKS: dict[str, Check] = {
    **golden_trajectory.CHECKS,
    **golden_turn.CHECKS,
    "losses": losses,
    "scalar_tables": scalar_tables,
    "g_ra": lambda golden: None,  # test_rewards_golden.py reads it, from the same folder
}
"""By the `name` in a golden file: how to hold ours against it."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_file" in metafunc.fixturenames:
        folder = metafunc.config.getoption("--golden", default=None) or Path(__file__).parents[1] / "golden"
        files = sorted(folder.glob("*.json"))
        metafunc.parametrize("golden_file", files, ids=[file.stem for file in files])


def test_golden(golden_file: Path) -> None:
    data = json.loads(golden_file.read_text())
    if "groups" in data:
        return  # the inputs that the other files name
    name = data.get("name", golden_file.stem)
    if name not in CHECKS:
        pytest.fail(f"{golden_file}: no row for {name!r} in CHECKS; there are {', '.join(sorted(CHECKS))}")
    CHECKS[name](Golden(golden_file.parent, data))


def test_a_file_without_a_row_fails(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text('{"name": "new_method", "tolerance": 1e-5}')
    with pytest.raises(pytest.fail.Exception, match="no row for 'new_method'"):
        test_golden(tmp_path / "new.json")
