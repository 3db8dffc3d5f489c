"""The pages docs/your-first-task.md and docs/sandbox-task.md, executed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.sound import assert_sound

PAGE = Path(__file__).parents[2] / "docs" / "your-first-task.md"


@pytest.fixture
def blocks() -> list[tuple[str, str]]:
    return re.findall(r"```(python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def shop(tmp_path: Path, blocks: list[tuple[str, str]]) -> Path:
    """The folder that the page describes, with the oracle."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (_, code), (_, recipe), (_, oracle), *_ = blocks
    (folder / "task.py").write_text(code + "\n" + oracle)
    (folder / "recipe.yaml").write_text(recipe.replace("scripts: {", "scripts: {oracle: ./task.py:oracle, "))
    return folder


def test_it_is_as_short_as_promised(blocks: list[tuple[str, str]]) -> None:
    lines = {kind: len([line for line in text.splitlines() if line.strip()]) for kind, text in blocks[:2]}
    assert lines["python"] <= 30
    assert lines["yaml"] <= 20


@pytest.mark.slow
def test_the_oracle_solves_it_and_random_calls_do_not(shop: Path) -> None:
    assert "ok" in agentrl("recipe", "check", "shop", cwd=shop.parent).stdout
    for script, low, high in (("oracle", 1.0, 1.0), ("random", 0.0, 0.5)):
        agentrl("rollout", "shop", "--n", "32", "--script", script, cwd=shop.parent)
        run = shop.parent / "runs" / f"shop-{script}"
        assert_sound(run)
        with RunDir.read(run) as reader:
            rewards = [row.reward for row in reader.rows()]
        assert len(rewards) == 32
        assert low <= sum(rewards) / 32 <= high


@pytest.mark.slow
def test_it_trains_from_scratch(shop: Path) -> None:
    small = ("train.iterations=1", "train.groups=2", "warm_start.episodes=16", "warm_start.steps=4")
    agentrl("train", "shop", *(part for text in small for part in ("--set", text)), cwd=shop.parent)
    assert_sound(shop.parent / "runs" / "shop")


@pytest.mark.slow
def test_the_sandbox_page_runs_as_it_stands(tmp_path: Path) -> None:
    page = PAGE.with_name("sandbox-task.md").read_text()
    (_, code), (_, recipe) = re.findall(r"```(python|yaml)\n(.*?)```", page, re.DOTALL)
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "task.py").write_text(code)
    (folder / "recipe.yaml").write_text(recipe)
    for script, reward in (("oracle", 1.0), ("random", 0.0)):
        agentrl("rollout", "files", "--n", "8", "--script", script, cwd=tmp_path)
        with RunDir.read(tmp_path / "runs" / f"files-{script}") as run:
            assert {row.reward for row in run.rows()} == {reward}
