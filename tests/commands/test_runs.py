"""What a command finds where it is to write: nothing, its own run, another one, or something else."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentrl.commands.runs import open_run
from agentrl.errors import StoreError
from agentrl.recipe_file import load_recipe
from agentrl.store.run_dir import RunDir
from tests.commands.test_train import TRAINING
from tests.store.make import make_episode


def start(counting: Path, path: Path, *overrides: str, command: str = "train") -> RunDir:
    return open_run(path, load_recipe(str(counting), overrides), command)


def refused(counting: Path, path: Path, *overrides: str) -> str:
    with pytest.raises(StoreError) as caught:
        start(counting, path, *overrides)
    return str(caught.value)


def test_a_folder_with_other_files_is_refused(counting: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("")
    said = refused(counting, tmp_path / "home")
    assert "holds files, but no run" in said
    assert f"--out {tmp_path / 'home-2'}" in said
    assert "is a file" in refused(counting, tmp_path / "home" / "thesis.tex")
    assert [child.name for child in (tmp_path / "home").iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".run.json.17.4").write_text("{")  # a start that was killed
    start(counting, tmp_path / "empty").close()


def test_changed_code_is_noted_and_not_refused(
    counting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(counting, tmp_path / "run") as run:
        run.add(make_episode("a", reward=1.0))
    start(counting, tmp_path / "run").close()
    assert capsys.readouterr().err == "", "nothing changed"
    with (counting / "task.py").open("a") as file:
        file.write("# other rewards\n")
    (counting / "helper.py").write_text("")
    start(counting, tmp_path / "run").close()
    noted = f"note: helper.py, task.py changed since {tmp_path / 'run'} began: it will hold episodes of both\n"
    assert capsys.readouterr().err == noted


def test_a_run_without_data_takes_the_recipe_as_it_was_mended(
    counting: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(counting, tmp_path / "run") as run:
        run.add(make_episode("a", status="user_error"))
    (counting / "task.py").write_text((counting / "task.py").read_text() + "\n")
    with start(counting, tmp_path / "run", "seed=5") as run:
        assert run.info["recipe"]["seed"] == 5
        run.add(make_episode("b", reward=1.0))
    assert "seed: 5 -> 0" in refused(counting, tmp_path / "run")
    assert capsys.readouterr().err == ""


def test_a_run_of_another_recipe_says_what_can_be_done(counting: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with start(counting, path) as run:
        run.add(make_episode("a", reward=1.0))
    anew = f"-> to start anew: --out {path}-2 (this run stays as it is); to continue it: the command as it was"
    said = refused(counting, path, "seed=5")
    assert said.endswith(anew)
    assert f"agentrl reward {path} --recipe RECIPE scores" in refused(counting, path, "rewards.exact.weight=2")
    assert f"agentrl credit {path} --estimator NAME" in refused(counting, path, "credit.estimator=rloo")
    newest = path / "checkpoints" / "it-00002"
    newest.mkdir(parents=True)
    (newest / "state.json").write_text("{}")
    assert f"from its newest weights: --set 'model={{path: {newest}}}'" in refused(counting, path, "seed=5")


def test_what_bounds_the_memory_of_a_step_may_change(counting: Path, tmp_path: Path) -> None:
    with start(counting, tmp_path / "run", "train.iterations=3") as run:
        run.add(make_episode("a", reward=1.0))
    smaller = ("train.token_budget=512", "train.logits_mb=64", "train.activation_checkpointing=true")
    start(counting, tmp_path / "run", "train.iterations=3", *smaller, "engine.cuda_graphs=false").close()
    assert "train.precision" in refused(counting, tmp_path / "run", "train.iterations=3", "train.precision=bfloat16")


def test_ctrl_c_ends_with_one_line(counting: Path) -> None:
    arguments = ["rollout", "counting", "--agent", "oracle", "--n", "99", "--out", "run"]
    slow = ["--set", "tools.0.settings.delay=0.5", "--set", "concurrency=1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl.cli", *arguments, *slow], cwd=counting.parent, stderr=subprocess.PIPE, text=True
    )
    for _ in range(1200):
        time.sleep(0.05)
        if (counting.parent / "run" / "index.sqlite").exists():
            with RunDir.read(counting.parent / "run") as run:
                if run.ids():
                    break
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == "stopped; what was finished is kept in run: the same command continues\n"
    assert process.returncode == 130


@pytest.mark.parametrize("scale", [[], ["--set", "scale.backend=process", "--set", "scale.trainer_ranks=2"]])
def test_ctrl_c_does_not_wait_for_the_warm_start(counting: Path, scale: list[str]) -> None:
    (counting / "recipe.yaml").write_text((counting / "recipe.yaml").read_text() + TRAINING)
    endless = ["--set", "warm_start.steps=1000000", *scale]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "agentrl.cli", "train", "counting", "--out", "run", *endless],
        cwd=counting.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "/1000000" in line:
            break
    process.send_signal(signal.SIGINT)
    assert "stopped; what was finished is kept" in process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert not (counting.parent / "run" / "checkpoints" / "it-00000").exists()
