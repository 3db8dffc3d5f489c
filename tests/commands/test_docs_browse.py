"""recipes/docs-browse: questions are answerable from their pages; the oracle reads the answers in a real Chromium."""

from __future__ import annotations

import functools
import html
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.tools.base import name_of, own_methods
from agentrl.tools.builtin.web.tool import Web
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError
from agentrl.types.task import Task
from tests.sound import played

pytestmark = [pytest.mark.slow, pytest.mark.family("environments")]

RECIPE = Path(__file__).parents[2] / "recipes" / "docs-browse"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)
PAGES = [Path("/usr/share/doc/python3.11/html/objects.inv"), Path("/usr/share/doc/sqlite3/limits.html")]
installed = pytest.mark.skipif(
    not all(page.is_file() for page in PAGES), reason="python3.11-doc and sqlite3-doc are not installed (apt-get)"
)
needs_chromium = pytest.mark.skipif(
    not (shutil.which("chromium-headless-shell") or shutil.which("chromium")), reason="Chromium is not installed"
)


@functools.cache
def tasks() -> list[Task]:
    questions = load("./task.py:questions")
    return [*questions(n=10_000), *questions(n=10_000, held_out=True)]


def scored(task: Task, answer: str | None) -> float:
    found: float = load("./task.py:exact")(task, Episode(id="e", group_id="g", task=task, status="done", answer=answer))
    return found


@pytest.mark.slow
@installed
@needs_chromium
@pytest.mark.parametrize(("script", "most"), [("oracle", 1.0), ("random", 0.0)])
def test_the_oracle_reads_every_kind_of_answer_and_the_random_agent_none(
    tmp_path: Path, script: str, most: float
) -> None:
    run = played(RECIPE, 9, script, tmp_path / "run", *([] if script == "oracle" else ["agent.max_turns=4"]))
    rows, episodes, info = list(run.episodes), list(run.whole_episodes()), run.info
    assert len({episode.task.id.split("/")[0] for episode in episodes}) == 9, "every kind"
    assert {row.reward for row in rows} == {most}
    said = json.dumps([[turn.observations for turn in episode.turns] for episode in episodes])
    assert "http://docs.test/" in said
    offered = [each["function"]["name"] for each in info["tools"]]
    assert offered[:11] == [name_of(each) for each in own_methods(Web())], "the same tools as those of a web recipe"
    assert "127.0.0.1:" not in said, "the port differs from run to run"


@pytest.mark.slow
@installed
def test_empty_junk_and_constant_answers_fail() -> None:
    for answer in (None, "", "   ", "''", "not found", "the", "I do not know", "Python", "SQLITE_", "."):
        assert sum(scored(task, answer) for task in tasks()) == 0, repr(answer)
    everything = " ".join(answer for task in tasks() for answer in task.data["answer"])
    assert sum(scored(task, everything) for task in tasks()) == 0
    # The best of constants, on what is played by default.
    canonical = load("./task.py:canonical")
    played = Counter(canonical(task.data["answer"][0]) for task in load("./task.py:questions")(n=512))
    assert played.most_common(1)[0][1] / 512 < 0.07


@installed
def test_every_right_answer_is_one_however_it_is_written() -> None:
    assert all(scored(task, answer) == 1.0 for task in tasks() for answer in task.data["answer"])
    one = {task.id.split("/")[0]: task for task in tasks()}
    ways = {"0x10": "16", "'r'": "r", "const char *": "const char*", "1,000": "1000", "3.9": "3.9."}
    for right, way in ways.items():
        made = Task.of("t", "?", answer=[right])
        assert scored(made, way) == 1.0, way
    for right, wrong in {"3.9": "39", "-1": "1", "3.10": "3.1", "b''": "'"}.items():
        assert scored(Task.of("t", "?", answer=[right]), wrong) == 0.0, wrong
    assert len(one) == 9


@pytest.mark.slow
@installed
def test_questions_are_split_by_page_and_stable_under_other_hashes() -> None:
    held_out = {task.id for task in load("./task.py:questions")(n=10_000, held_out=True)}
    by_page: dict[str, set[bool]] = {}
    for task in tasks():
        by_page.setdefault(task.data["page"], set()).add(task.id in held_out)
    assert all(len(sides) == 1 for sides in by_page.values())
    assert 0.05 < len(held_out) / len(tasks()) < 0.2
    assert len({task.id for task in tasks()}) == len(tasks()) > 2000
    script = (
        "import pathlib, sys; from agentrl.registry.references import load_object\n"
        "print([t.id for t in load_object('./task.py:questions', pathlib.Path(sys.argv[1]))(n=64)])"
    )
    there = subprocess.run([sys.executable, "-c", script, str(RECIPE)], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == str([task.id for task in load("./task.py:questions")(n=64)])


@pytest.mark.slow
@installed
def test_the_answer_stands_on_the_page() -> None:
    """Found again without the parser of the recipe: tags out, blanks squeezed."""
    texts: dict[str, str] = {}
    for task in tasks()[::5]:
        site, _, page = task.data["page"].removeprefix("http://docs.test/").partition("/")
        if task.data["page"] not in texts:
            root = {"python": PAGES[0].parent, "sqlite": PAGES[1].parent}[site]
            raw = (root / page).read_text(encoding="utf-8", errors="replace")
            texts[task.data["page"]] = " ".join(html.unescape(re.sub(r"<[^>]*>", "", raw)).split())
        found = {match for match in re.findall(task.data["says"], texts[task.data["page"]])}
        assert task.data["answer"][0] in found, (task.id, found)


def test_a_machine_without_the_packages_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as error:
        load("./library.py:Library")({"python": tmp_path / "a", "sqlite": tmp_path / "b"})
    assert "apt-get install --no-install-recommends python3.11-doc sqlite3-doc" in str(error.value)
