"""The page docs/environments.md, executed."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from agentrl.api.rollout import rollout
from agentrl.chat.formats.parser import signature_lines
from agentrl.commands.plug_ins import plug_ins
from agentrl.sandbox.images import image_named, place_of
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from tests.command import agentrl
from tests.docs import lines_of
from tests.sandbox.rootfs import PROGRAMS, build_rootfs, copyable
from tests.sound import assert_sound

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
NAMES = ("desk", "guess", "repair")
LINES = {"desk": (60, 12), "guess": (20, 12), "repair": (30, 12)}
"""What the page promises: lines of Python and of YAML that are neither blank nor a comment."""

REPAIRS = (*PROGRAMS, "/usr/bin/sh", "/usr/bin/cp", "/usr/bin/sed")
"""What the repair set needs in its images."""


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


def played(folder: Path, name: str, script: str, n: int, *more: str) -> list[Episode]:
    agentrl("rollout", name, "--n", str(n), "--script", script, *more, cwd=folder)
    run = folder / "runs" / f"{name}-{script}"
    assert_sound(run)
    with RunDir.read(run) as stored:
        return list(stored.episodes())


@pytest.mark.parametrize("name", NAMES)
def test_they_are_as_short_as_promised(name: str) -> None:
    for text, most in zip(blocks()[name], LINES[name], strict=True):
        assert lines_of(text) <= most


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_game(folder: Path) -> None:
    assert {e.reward for e in played(folder, "guess", "oracle", 9)} == {1.0}
    random = played(folder, "guess", "random", 9)
    assert {e.stop for e in random} <= {"turns", "answer"}
    replies = {message["content"] for e in random for turn in e.turns for message in turn.observations}
    assert replies <= {"Higher.", "Lower.", "Right."}
    assert "Higher." in replies


@pytest.mark.slow
def test_the_repair_set_without_images(folder: Path) -> None:
    plain = ("--set", "tasks.args={images: false}")
    episodes = played(folder, "repair", "oracle", 4, *plain)
    assert [e.reward for e in episodes] == [1.0] * 4
    assert {e.reward for e in played(folder, "repair", "random", 4, *plain)} == {0.0}


def test_the_built_in_tools_have_the_arguments_of_the_page() -> None:
    page = PAGE.with_name("tools.md").read_text().replace(r"\|", "|")
    told: dict[str, list[str]] = defaultdict(list)
    for names, said in re.findall(r"^\| (`[^|]*`) \| (.*) \|$", page, re.MULTILINE):
        for name in re.findall(r"\w+", names):
            told[name] += re.findall(r"`(\w+\(.*?\)|\w+: .*?|models|app|library|of|factory)`", said)
    for row in plug_ins("tools"):
        lines = signature_lines(row["about"]["functions"]).splitlines()
        functions = [line[2:].partition("): ")[0] + ")" for line in lines if line.startswith("- ")]
        settings = [
            each["name"] if each["required"] else f"{each['name']}: {each['type']} = {each['default']}"
            for each in row["settings"]
        ]
        assert told.pop(row["name"]) == functions + settings
    assert not told


@pytest.mark.slow
@pytest.mark.skipif(not copyable(REPAIRS), reason=f"the images are made of these programs of the host: {REPAIRS}")
def test_the_repair_set_has_an_image_and_files_per_task(
    folder: Path, public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(public_folder))
    python, swe = (place_of(image_named(name)) for name in ("python", "swe"))
    build_rootfs(python, REPAIRS, mine="python\n")
    subprocess.run(["cp", "-al", python, swe], check=True)  # links: the second image costs nothing
    (swe / "etc" / "mine").unlink()
    (swe / "etc" / "mine").write_text("swe\n")
    (folder / "repair" / "seen.py").write_text(SEEN)
    looks = {"rewards.looks": {"use": "./seen.py:looks", "weight": 0}}
    rollout(folder / "repair", 2, script="oracle", overrides=looks, out=folder / "run", reporters=())
    with RunDir.read(folder / "run") as run:
        seen = {episode.task.id: (episode.reward, episode.notes["looks"]) for episode in run.episodes()}
    assert seen == {
        "add.py": (1.0, "python add.py was def add(a, b): return a - b"),
        "last.py": (1.0, "swe last.py was def last(items): return items[0]"),
    }


SEEN = """
from agentrl.rewards.declare import Scored

async def looks(sandbox):
    ran = await sandbox.exec("cat /etc/mine; echo *.py was; cat /tmp/before.py")
    return Scored(0.0, " ".join(ran.text.split()))
"""
