"""What `pip install agentrl` without extras gives: rollouts of scripts, check, show, recipes; no torch; small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.counting import write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its core dependencies only."""
    venv = tmp_path_factory.mktemp("core") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([venv / "bin/pip", "install", "-q", "--disable-pip-version-check", str(ROOT)], check=True)
    return venv


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


def test_what_needs_an_extra_says_which(core: Path, tmp_path: Path) -> None:
    done = run(core, tmp_path, "train", "quickstart")
    assert done.returncode == 1
    assert "pip install 'agentrl[train]'" in done.stderr


def test_the_wheel_carries_the_programs_that_run_inside_sandboxes(core: Path, tmp_path: Path) -> None:
    code = "from agentrl.types.paths import data_path; print(data_path('tools', 'toolbox', 'toolbox.py').is_file())"
    done = subprocess.run([core / "bin/python", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
