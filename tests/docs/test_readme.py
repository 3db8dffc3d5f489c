"""README.md: its size, its figures, and its task, executed."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from agentrl.estimators.registry import ESTIMATORS
from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.docs import lines_of
from tests.sound import assert_sound

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text()
BULLETS = re.findall(r"^- \*\*.*$", PAGE, re.MULTILINE)


def block(kind: str) -> str:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[0]


def test_it_is_short() -> None:
    assert len(PAGE.splitlines()) <= 100
    assert len(PAGE.split()) <= 900
    assert lines_of(block("python")) <= 24
    assert lines_of(block("yaml")) <= 11
    assert lines_of(block("bash")) == 3


def test_every_claim_has_a_command_and_its_results() -> None:
    assert 4 <= len(BULLETS) <= 6
    for bullet in BULLETS:
        (results,) = re.findall(r"\(\[results\]\((docs/results/[\w.-]+)\)\)", bullet)
        assert (ROOT / results).is_file()
        (command,) = re.findall(r"`((?:agentrl|python -m|make) [^`]+)`(?=:? (?:did|\(\[)| \(\[)", bullet)
        text = (ROOT / results).read_text()
        assert command in text or results.endswith(".json")


def test_the_figures_are_those_of_the_results() -> None:
    turns = dict(re.findall(r"^\| (\w+) \|.*\| ([\d.]+) \|$", results("quickstart"), re.MULTILINE))
    assert f"GiGPO) solves the quickstart's mazes in {turns['GiGPO']} turns, GRPO in {turns['GRPO']}" in PAGE
    shares = {
        peer: round(1 / float(ratio))
        for peer, ratio in re.findall(
            r"^\| CPU ms a turn, 0 ms \| agentrl \|.*\| (verifiers[^|]*) \|.*\| ([\d.]+) \|$",
            results("benchmarks"),
            re.MULTILINE,
        )
    }
    said = f"1/{shares['verifiers']} of the CPU that verifiers takes, and 1/{shares['verifiers, TrainClient']} where"
    assert said in PAGE
    probed = sum(int(n) for n in re.findall(r"(?:Maze|Kitchen|Distance 6): (\d+) turns", results("credit")))
    assert f"{probed:,} turns" in PAGE
    assert "ten of ten trainings" in results("determinism")
    mfu = json.loads((ROOT / "docs/results/gpu-h200.json").read_text())["phases"]["mfu"]["figures"]
    tree, padded = (f"{100 * mfu[f'1.5b, {layout}, MFU']:.0f} %" for layout in ("tree", "padded"))
    assert f"runs at {tree} of the peak, of padded rows at {padded}" in PAGE
    assert f"{len(ESTIMATORS.all())} estimators" in PAGE


def results(name: str) -> str:
    return (ROOT / "docs" / "results" / f"{name}.md").read_text()


def test_every_picture_is_shown_as_soon_as_it_is_there() -> None:
    pages = [re.sub(r"<!--.*?-->", "", PAGE), *(path.read_text() for path in (ROOT / "docs").glob("*.md"))]
    shown = {name for page in pages for name in re.findall(r"!\[[^\]]*\]\((?:docs/)?pictures/([\w.]+)\)", page)}
    assert shown == {path.name for path in (ROOT / "docs" / "pictures").iterdir()}


@pytest.fixture
def doors(tmp_path: Path) -> Path:
    """The folder that the page describes."""
    folder = tmp_path / "doors"
    folder.mkdir()
    (folder / "task.py").write_text(block("python"))
    (folder / "recipe.yaml").write_text(block("yaml"))
    return tmp_path


@pytest.mark.slow
def test_the_task_is_played_trained_and_shown(doors: Path) -> None:
    for line in block("bash").splitlines():
        command = shlex.split(line, comments=True)[1:]
        if command[0] == "train":
            command += ["--set", "train.iterations=2", "--set", "warm_start.steps=20"]
        agentrl(*command, cwd=doors)
    assert_sound(doors / "runs" / "doors-guess")
    assert_sound(doors / "runs" / "doors")
    with RunDir.read(doors / "runs" / "doors") as run:
        assert [line["iteration"] for line in run.metrics() if line["split"] == "train"] == [1, 2]
    assert "<html" in (doors / "doors.html").read_text()
