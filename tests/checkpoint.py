"""A policy that was trained a little, once for all tests of a run and all its workers.

    from tests.checkpoint import trained_run
    __all__ = ["trained_run"]  # a fixture

Read it, copy it, go on from a copy: `shutil.copytree(trained_run, tmp_path / "run")`. Never write into it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import agentrl, sets
from tests.counting import EXACT, TRAINING, write


def shared(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that `make` fills: by the first worker that needs it. The others wait until it is whole."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker whose `make` failed
            folder.mkdir()
            make(folder)
            (folder / "whole").touch()
    return folder


def _train(here: Path) -> None:
    write(here / "counting", TRAINING)
    agentrl("train", "counting", "--out", "run", *sets(*EXACT), cwd=here)


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a finished training of the counting recipe, `TRAINING` and `EXACT`: five iterations, two evaluations.

    Its newest checkpoint is `checkpoints/it-00005`, a model folder of transformers.
    """
    return shared(tmp_path_factory, "trained", _train) / "run"


@pytest.fixture(scope="session")
def trained_model(trained_run: Path) -> Path:
    """The model folder of its newest checkpoint."""
    return trained_run / "checkpoints" / "it-00005"
