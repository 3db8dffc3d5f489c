"""The page docs/environments.md, executed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from tests.command import agentrl

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
NAMES = ("desk", "guess", "repair")
LINES = {"desk": (60, 12), "guess": (20, 12), "repair": (30, 12)}
"""What the page promises: lines of Python and of YAML that are not blank."""


def blocks() -> dict[str, tuple[str, str]]:
    found = re.findall(r"```(python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    texts = [text for _, text in found]
    return {name: (texts[2 * k], texts[2 * k + 1]) for k, name in enumerate(NAMES)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the page describes."""
    for name, (code, recipe) in blocks().items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.py").write_text(code)
        (tmp_path / name / "recipe.yaml").write_text(recipe)
    return tmp_path


def played(folder: Path, name: str, agent: str, n: int, *more: str) -> list[Episode]:
    agentrl("rollout", name, "--n", str(n), "--agent", agent, *more, cwd=folder)
    run = folder / "runs" / f"{name}-{agent}"
    assert agentrl("check", str(run), cwd=folder).returncode == 0
    with RunDir.read(run) as stored:
        return list(stored.episodes())


@pytest.mark.parametrize("name", NAMES)
def test_they_are_as_short_as_promised(name: str) -> None:
    for text, most in zip(blocks()[name], LINES[name], strict=True):
        assert len([line for line in text.splitlines() if line.strip()]) <= most


def test_the_function_calling_set(folder: Path) -> None:
    checked = agentrl("recipe", "check", "desk", cwd=folder).stdout
    assert "find_order, cancel, find_rooms, book" in checked
    episodes = played(folder, "desk", "oracle", 16)
    assert {episode.reward for episode in episodes} == {1.0}
    offered = {e.task.id[:4]: [tool["function"]["name"] for tool in e.tools or []] for e in episodes}
    assert offered == {"orde": ["find_order", "cancel"], "room": ["find_rooms", "book"]}
    assert {e.task.id[:4]: e.info for e in episodes} == {"orde": {"rounds": 2}, "room": {"rounds": 3}}
    for episode in episodes:
        system = episode.prompt[0]["content"]
        said = [message["content"] for turn in episode.turns for message in turn.observations]
        assert system == "You are a clerk. Use the tools."
        assert not episode.branches
        assert ("Then cancel it." in said) == episode.task.id.startswith("order")
    shown = agentrl("show", "runs/desk-oracle", "order0#0", cwd=folder).stdout
    assert "find_order(order: string)" in shown
    assert "book(" not in shown
    random = played(folder, "desk", "random", 16)
    called = {(e.task.id[:4], call.name) for e in random for turn in e.turns for call in turn.calls}
    assert called == {("orde", "find_order"), ("orde", "cancel"), ("room", "find_rooms"), ("room", "book")}
    assert sum(e.reward or 0 for e in random) <= 2


def test_the_game(folder: Path) -> None:
    assert {e.reward for e in played(folder, "guess", "oracle", 9)} == {1.0}
    random = played(folder, "guess", "random", 9)
    assert {e.stop for e in random} <= {"turns", "answer"}
    replies = {message["content"] for e in random for turn in e.turns for message in turn.observations}
    assert replies <= {"Higher.", "Lower.", "Right."}
    assert "Higher." in replies


def test_the_repair_set_without_images(folder: Path) -> None:
    plain = ("--set", "tasks.args={images: false}")
    episodes = played(folder, "repair", "oracle", 4, *plain)
    assert [e.reward for e in episodes] == [1.0] * 4
    assert {e.reward for e in played(folder, "repair", "random", 4, *plain)} == {0.0}
