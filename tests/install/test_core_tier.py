"""What an install without extras gives: rollouts of scripts, check, show, recipes; no torch; small."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from scripts import wheel
from tests.counting import write

pytestmark = [pytest.mark.slow, pytest.mark.family("packages")]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its core dependencies only. What was built lies in `dist` beside it."""
    folder = tmp_path_factory.mktemp("core")
    return wheel.environment(wheel.build(folder / "dist"), (), folder / "venv").parents[1]


def run(core: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [core / "bin/agentrl", *arguments], cwd=cwd, capture_output=True, text=True, check=False, env=env
    )


def test_it_is_small_and_has_no_torch(core: Path) -> None:
    size = sum(p.stat().st_size for p in core.rglob("*") if p.is_file() and not p.is_symlink())
    assert size < 200e6, f"{size / 1e6:.0f} MB"
    assert list(core.rglob("site-packages/torch*")) == []


def test_scripts_roll_out_and_are_checked_and_shown(core: Path, tmp_path: Path) -> None:
    write(tmp_path / "counting")
    for arguments, expected in [
        (["recipe", "check", "counting"], "ok"),
        (["rollout", "counting", "--n", "12", "--script", "oracle", "--out", "run"], "reward mean 1.000"),
        (["check", "run"], "sound"),
        (["show", "run", "count3#0"], "Count to 4."),
        (["view", "run", "--export", "view.html"], "view.html"),
        (["recipe", "show", "quickstart"], "describe_tools"),
        (["doctor"], "torch"),
    ]:
        done = run(core, tmp_path, *arguments)
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        assert expected in done.stdout


def test_it_is_used_outside_of_the_checkout(core: Path, tmp_path: Path) -> None:
    wheel.used(core / "bin/agentrl", tmp_path)


def test_the_wheel_and_the_sdist_are_whole(core: Path) -> None:
    (built,) = (core.parent / "dist").glob("*.whl")
    wheel.files(built)


def test_what_needs_an_extra_says_which(core: Path, tmp_path: Path) -> None:
    done = run(core, tmp_path, "train", "quickstart")
    assert done.returncode == 1
    assert "pip install 'agentrl-framework[train]'" in done.stderr


def test_the_wheel_carries_the_programs_that_run_inside_sandboxes(core: Path, tmp_path: Path) -> None:
    code = "from agentrl.types.paths import data_path; print(data_path('tools', 'toolbox', 'toolbox.py').is_file())"
    done = subprocess.run([core / "bin/python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
