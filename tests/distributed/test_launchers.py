"""A launcher of one's own, selected as any other plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.scale import BUILT_IN
from agentrl.distributed.launchers import LAUNCHERS
from agentrl.store.run_dir import RunDir
from tests.command import agentrl as command

NOTED = """
from pathlib import Path
from agentrl.distributed.process import ProcessLauncher

class Noted(ProcessLauncher):
    "Writes down what it starts."
    def __init__(self, request, note: str, copies: int = 1):
        super().__init__()
        self.request, self.note, self.copies = request, Path(note), copies
    async def spawn(self, name, cls, *args):
        with self.note.open("a") as file:
            print(self.request.key, name, *[cls.__name__] * self.copies, file=file)
        return await super().spawn(name, cls, *args)

class Half(ProcessLauncher):
    spawn = None

class Narrow(ProcessLauncher):
    async def spawn(self, name):
        pass
"""


@pytest.fixture
def counting(counting: Path) -> Path:
    (counting / "launch.py").write_text(NOTED)
    return counting


@pytest.mark.slow
def test_it_starts_the_workers_with_its_own_settings(counting: Path) -> None:
    sets = ["scale.use=./launch.py:Noted", "scale.rollout_workers=2", "scale.note=note.txt", "scale.copies=2"]
    given = [part for each in sets for part in ("--set", each)]
    command("rollout", "counting", "-n", "4", "--script", "oracle", "--out", "run", *given, cwd=counting.parent)
    assert sorted((counting.parent / "note.txt").read_text().splitlines()) == [
        f"scale.rollout_workers worker {k} RolloutWorker RolloutWorker" for k in range(2)
    ]
    with RunDir.read(counting.parent / "run") as run:
        assert [row.status for row in run.rows()] == ["done"] * 4
        assert run.info["recipe"]["scale"]["note"] == "note.txt"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (["scale.use=./launch.py:Noted", "scale.note=n", "scale.nota=n"], "has no setting 'nota'"),
        (["scale.use=./launch.py:Noted"], "needs the setting 'note'"),
        (["scale.use=./launch.py:Narrow"], "spawn"),
        (["scale.use=./launch.py:Path"], "Path lacks the method close"),
        (["scale.use=./launch.py:Slurm"], "has no 'Slurm'"),
        (["scale.use=slurm"], "there is no launcher 'slurm'"),
        (["scale.use=process", "scale.note=n"], "scale.note: unknown key"),
    ],
)
def test_what_is_no_launcher_is_refused_before_anything_runs(counting: Path, sets: list[str], told: str) -> None:
    given = [part for each in [*sets, "scale.rollout_workers=2"] for part in ("--set", each)]
    done = command("recipe", "check", "counting", *given, cwd=counting.parent, ok=False)
    assert done.returncode != 0
    assert told in done.stdout + done.stderr


def test_the_recipe_knows_the_same_names() -> None:
    assert tuple(LAUNCHERS.built_in) == BUILT_IN
