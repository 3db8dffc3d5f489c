"""recipes/terminal: the commands of every kind do what the files are compared with, and nothing else does."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.credit import credit
from agentrl.api.rollout import rollout
from agentrl.registry.references import load_object
from agentrl.store.run_dir import RunDir
from tests.command import agentrl

RECIPE = Path(__file__).parents[2] / "recipes" / "terminal"
tasks: Callable[..., Any] = load_object("./task.py:tasks", RECIPE)


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [False, True])
def test_the_commands_make_the_files_and_at_first_they_are_not_there(tmp_path: Path, held_out: bool) -> None:
    def holds(folder: Path, check: dict[str, Any]) -> bool:
        path = folder / check["file"]
        return (
            not path.exists()
            if check.get("absent")
            else path.is_file() and path.read_text().strip() == check["equals"].strip()
        )

    for task in tasks(n=60, held_out=held_out):
        folder = tmp_path / task.id
        for path, text in task.sandbox["files"].items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        assert not all(holds(folder, check) for check in task.data["state"]), task.id
        subprocess.run(["bash", "-c", task.data["commands"]], cwd=folder, check=True)
        assert [check for check in task.data["state"] if not holds(folder, check)] == [], task.id


def test_the_splits_share_no_task() -> None:
    train, held_out = ({str(task.sandbox) for task in tasks(n=200, held_out=side)} for side in (False, True))
    assert not train & held_out
    assert [task.data for task in tasks(n=20)] == [task.data for task in tasks(n=40)][:20]


@pytest.mark.slow
def test_the_oracle_solves_a_task_of_every_kind(tmp_path: Path) -> None:
    for script, reward in (("oracle", 1.0), ("junk", 0.0)):
        agentrl("rollout", str(RECIPE), "--n", "10", "--script", script, "--out", script, cwd=tmp_path)
        with RunDir.read(tmp_path / script) as run:
            assert [row.reward for row in run.rows()] == [reward] * 10


@pytest.mark.slow
def test_the_state_of_a_turn_is_the_files(tmp_path: Path) -> None:
    """The oracle looks at them, then changes them, then says that it is done."""
    run = rollout(RECIPE, 20, group_size=2, script="oracle", out=tmp_path / "run", reporters=())
    states = {each.id: [turn.state for turn in each.turns] for each in run.whole_episodes()}
    assert all(state is not None for found in states.values() for state in found)
    assert {(found[0] == found[1], found[1] == found[2]) for found in states.values()} == {(True, False)}
    assert [batch["shared_states"] for batch in credit(run).batches] == [1.0]
