"""The episodes of a group try one task: rollouts and `agentrl check` find those that were shown something else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.rollouts.summary import summary
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Context, Episode
from agentrl.types.reporter import Reporter
from agentrl.view.summary import summarise
from tests.store.make import make_episode

TASKS = """
import random
from agentrl import Agent, Environment, Say, Task, ToolAgent, tool

def tasks(n=2):
    for k in range(n):
        yield Task.of(f"t{k}", "Play.", seed=k)

COUNT = iter(range(1000))

class Seeded(Environment):
    async def open(self, task, sandbox): self.number = random.Random(task.seed).random()
    def opening(self): return f"It is {self.number}."

class Drawn(Seeded):
    "Draws anew in each episode."
    async def open(self, task, sandbox): self.number = next(COUNT)

class Tools(Environment):
    "Offers what it draws."
    def opening(self): return "Call one."
    async def open(self, task, sandbox): self.number = next(COUNT)
    def tools(self): return [tool.from_schema(f"door{self.number}", "Open it.", {}, lambda given: "")]

class None_(Environment):
    "Its tools were renamed: it offers none."
    @tool
    def look(self) -> str:
        "Look."
        return ""
    def tools(self): return []

class Later(None_):
    "Offers nothing at first."
    def __init__(self): self.heard = False
    def respond(self, reply):
        if self.heard: return None
        self.heard = True
        return "now"
    def tools(self): return [self.look] if self.heard else []

class Silent(Environment):
    "Has a speaker, and no tool."
    def respond(self, reply): return None

class Roaming(ToolAgent):
    "Draws what it is told."
    def opening(self, session, system):
        return [{"role": "user", "content": f"{session.rng.random()}"}]

class Seats(Agent):
    "Draws its seat, which is its role."
    def opening(self, session, system): return []
    async def run(self, session):
        seat = session.rng.choice(["black", "white"])
        session.say(f"You are {seat}.")
        reply = await session.generate(agent=seat)
        session.finish("answer", reply.text)

class Opponent(Agent):
    "The other one begins, by chance."
    def opening(self, session, system): return [{"role": "system", "content": system or "Play."}]
    async def run(self, session):
        them = session.context("them", [{"role": "user", "content": "begin"}], policy="other")
        move = (await them.generate()).text
        session.say(move)
        session.finish("answer", (await session.generate()).text)

class Partly(Opponent):
    "Its system message is drawn, too."
    def opening(self, session, system):
        return [{"role": "system", "content": f"Play {session.rng.random()}."}]

def oracle(task, rng):
    yield Say("yes")
    yield Say("yes")

def said(task, episode): return float(episode.answer == "yes")

def moves(task, rng):
    while True:
        yield Say(str(rng.random()))
"""


class Told(Reporter):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def played(tmp_path: Path, n: int = 8, **sections: Any) -> tuple[RunDir, list[str]]:
    """A rollout of groups of four, and its warnings."""
    (tmp_path / "task.py").write_text(TASKS)
    told = Told()
    recipe = {
        "name": "openings",
        "tasks": f"{tmp_path}/task.py:tasks",
        "scripts": {"oracle": f"{tmp_path}/task.py:oracle", "moves": f"{tmp_path}/task.py:moves"},
        "rewards": {"said": f"{tmp_path}/task.py:said"},
        **sections,
    }
    for key in ("tools", "agent"):
        if name := sections.get(key):
            recipe[key] = [f"{tmp_path}/task.py:{name}"] if key == "tools" else {"use": f"{tmp_path}/task.py:{name}"}
    agentrl.rollout(recipe, n, group_size=4, script="oracle", out=tmp_path / "run", reporters=[told])
    return RunDir.read(tmp_path / "run"), told.warnings


@pytest.mark.parametrize(
    ("sections", "where"),
    [
        ({"tools": "Drawn"}, "message 1 is 'user: It is "),
        ({"tools": "Tools"}, "the tools are "),
        ({"agent": "Roaming"}, "message 0 is 'user: "),
        ({"agent": "Partly", "policies": {"other": {"script": "moves"}}}, "message 0 is 'system: Play "),
    ],
)
def test_a_group_that_is_not_one_task_is_told(tmp_path: Path, sections: dict[str, Any], where: str) -> None:
    """Once by the rollout, with environment, group and remedy; each group by `agentrl check`; counted by both."""
    run, warnings = played(tmp_path, **sections)
    name = sections.get("tools") or sections["agent"]
    assert len(warnings) == 1
    assert re.search("group rollout/00000(0-t0|1-t1) is not one task", warnings[0])  # the first that ended
    told = (f"task.py:{name} opened", where, "task.seed", "openings: differ")
    assert [said for said in told if said not in warnings[0]] == []
    report = check(run.path)
    assert not report.ok
    assert [report.invariants["groups"].failed, len(report.invariants["groups"].offenders)] == [2, 2]
    assert any("openings: differ" in note for note in report.notes)
    assert summarise(run).mixed_groups == 2
    assert summary(run.episodes())["mixed_groups"] == 2


@pytest.mark.parametrize(
    "sections",
    [
        {"tools": "Seeded"},
        {"agent": "Seats"},
        {"agent": "Opponent", "policies": {"other": {"script": "moves"}}},
        {"tools": "Drawn", "openings": "differ"},
        {"tools": "Later"},
        {"tools": "Silent"},
        {},
    ],
)
def test_what_is_meant_to_differ_is_none(tmp_path: Path, sections: dict[str, Any]) -> None:
    """Seats and first moves that are drawn, tools that come later, and what the recipe says."""
    run, warnings = played(tmp_path, **sections)
    assert warnings == []
    assert check(run.path).as_text().endswith("8 episodes, sound")
    assert check(run.path).notes == []


def test_a_group_goes_on_in_another_process(tmp_path: Path) -> None:
    """The openings of what was stored before are known."""
    played(tmp_path, n=1, tools="Drawn")[0].close()
    run, warnings = played(tmp_path, n=2, tools="Drawn")
    assert len(warnings) == 1
    assert "#0 and rollout/000000-t0#1" in warnings[0]
    assert summarise(run).mixed_groups == 1


def test_declared_tools_that_are_not_offered_are_told(tmp_path: Path) -> None:
    """By the rollout once, and by `agentrl check` with their number."""
    run, warnings = played(tmp_path, tools="None_")
    assert len(warnings) == 1
    assert "had no tool to call" in warnings[0]
    assert "8 episodes had no tool to call" in check(run.path).as_text()


def _image(blob: str, width: int = 8) -> list[dict[str, Any]]:
    part = {"type": "image", "blob": blob * 64, "format": "png", "width": width, "height": 8}
    return [{"role": "user", "content": [{"type": "text", "text": "Look."}, part]}]


def _stored(tmp_path: Path, *episodes: Episode) -> list[str]:
    with RunDir.create(tmp_path / "run") as run:
        run.add(*episodes)
    return check(tmp_path / "run").invariants["groups"].offenders


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        (lambda: {"prompt": _image("a")}, False),
        (lambda: {"prompt": []}, False),
        (lambda: {"tools": []}, False),
        (lambda: {"group": "another", "prompt": []}, True),
        (lambda: {"status": "infra_error", "prompt": [], "turns": 0}, True),
        (lambda: {"contexts": {"main": Context(role="x", prompt=[], policy="user")}}, True),
    ],
)
def test_stored_episodes_of_any_origin_are_compared(
    tmp_path: Path, change: Callable[[], dict[str, Any]], alike: bool
) -> None:
    """Also those that other programs recorded."""
    other = make_episode("b", **change())
    assert bool(_stored(tmp_path, make_episode("a"), other)) != alike


def test_two_screenshots_of_one_screen_are_alike(tmp_path: Path) -> None:
    """Their bytes may differ, their size may not."""
    episodes = [make_episode(id, prompt=_image(blob)) for id, blob in (("a", "a"), ("b", "b"))]
    assert _stored(tmp_path, *episodes) == []
    assert _stored(tmp_path / "wide", *episodes, make_episode("c", prompt=_image("a", width=9))) != []


def test_text_that_is_none_is_compared_as_it_is_stored(tmp_path: Path) -> None:
    """A lone surrogate is "?" in the record."""
    said = [{"role": "user", "content": "\ud835"}]
    with RunDir.create(tmp_path / "run") as run:
        run.add(make_episode("a", prompt=said))
        rows = [*itertools.chain(run.rows(), run.rows())]
        stored = run.get("a")
    assert {row.opening for row in rows} == {rows[0].opening}
    assert _stored(tmp_path / "two", make_episode("a", prompt=said), make_episode("b", prompt=stored.prompt)) == []
