"""Every task of the recipes is solved by its oracle: minutes each (`make test-envs`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl

pytestmark = pytest.mark.family("envs")

HELD_OUT = ("--set", "tasks.args.held_out=true")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("recipe", "n", "more"),
    [
        ("math-python", 512, ()),
        ("math-python", 128, HELD_OUT),
        ("puzzles", 425, ()),
        ("clinic", 512, ()),
        ("clinic", 64, HELD_OUT),
        ("clinic/records.yaml", 512, ()),
        ("clinic/records.yaml", 64, HELD_OUT),
        ("search-qa/fiction.yaml", 512, ()),
        ("sql-spider", 512, ()),
        ("sql-spider", 128, HELD_OUT),
        ("sql-chinook", 512, ()),
        ("sql-chinook", 128, HELD_OUT),
        ("webshop", 512, ()),
        ("webshop", 128, HELD_OUT),
        ("docs-browse", 512, ()),
        ("docs-browse", 128, HELD_OUT),
        ("picture-maze", 1024, ()),
        ("picture-maze", 128, HELD_OUT),
        ("grounding", 512, ()),
        ("grounding", 128, HELD_OUT),
        ("desktop-notes", 60, ()),
        ("desktop-notes", 30, HELD_OUT),
        ("textworld-express", 256, ("--set", "tasks.args.game=all")),
        ("textworld-express", 64, ("--set", "tasks.args.game=all", "--set", "tasks.args.split=test")),
        ("scienceworld", 180, ()),
        ("scienceworld", 90, ("--set", "tasks.args.split=test")),
        ("babyai", 120, ()),
        ("babyai", 60, HELD_OUT),
        ("alfworld", 132, ()),
        ("alfworld", 66, HELD_OUT),
        ("textworld", 128, ()),
        ("textworld", 64, HELD_OUT),
        ("games", 256, ()),
        ("games", 64, HELD_OUT),
        ("terminal", 512, ()),
        ("terminal", 128, HELD_OUT),
        ("swe-inject", 68, ()),
        ("swe-inject", 16, HELD_OUT),
        ("swe-testbed", 18, ()),
        ("kernel", 128, ()),
        ("kernel", 64, HELD_OUT),
    ],
)
def test_the_oracle_solves_every_task(tmp_path: Path, recipe: str, n: int, more: tuple[str, ...]) -> None:
    agentrl("rollout", recipe, "--n", str(n), "--script", "oracle", "--out", "run", *more, cwd=tmp_path, timeout=3500)
    with RunDir.read(tmp_path / "run") as run:
        rows = run.rows()
    assert len(rows) == n
    assert [row.id for row in rows if row.reward != pytest.approx(1.0)] == []
