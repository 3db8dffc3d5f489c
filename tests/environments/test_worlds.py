"""A few games of alfworld and textworld: the oracle wins, who does not play does not, and games repeat."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.config.loader import load_recipe
from agentrl.curriculum.task_source import load_tasks
from agentrl.registry.references import load_object
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError

pytestmark = pytest.mark.family("worlds")

RECIPES = Path(__file__).parents[2] / "recipes"

WORLDS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {  # what has to be there, and two quick games
    "alfworld": (("alfworld", "textworld", "fast_downward"), {"kind": "look_at_obj_in_light", "n": 2}),
    "textworld": (("textworld",), {"game": "treasure", "n": 2}),
}


def needed(recipe: str) -> None:
    missing = [each for each in WORLDS[recipe][0] if importlib.util.find_spec(each) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (make worlds)")


def played(folder: Path, recipe: str, script: str) -> list[Episode]:
    overrides = {"tasks.args": WORLDS[recipe][1], "agent.max_turns": 6, "credit": {"use": "gigpo"}}
    run = rollout(RECIPES / recipe, 2, script=script, overrides=overrides, out=folder / script, reporters=())
    return list(run.dir.episodes())


@pytest.mark.parametrize("recipe", WORLDS)
def test_the_oracle_wins_and_who_does_not_play_does_not(tmp_path: Path, recipe: str) -> None:
    needed(recipe)
    arguments = [*sys.argv]
    solved = played(tmp_path, recipe, "oracle")
    assert [e.components["success"] for e in solved] == [1.0, 1.0]
    assert all(len({turn.state for turn in e.turns if turn.calls}) > 1 for e in solved)
    for script in ("random", "empty", "junk"):
        episodes = played(tmp_path, recipe, script)
        assert {e.status for e in episodes} <= {"done", "truncated"}
        assert script == "random" or not any(e.components["success"] for e in episodes)
    assert sys.argv == arguments


@pytest.mark.parametrize("recipe", WORLDS)
def test_held_out_games_are_others(recipe: str) -> None:
    needed(recipe)
    settings = load_recipe(str(RECIPES / recipe))
    train, test = (load_tasks(tasks, settings.base, 0).tasks for tasks in (settings.tasks, settings.eval.tasks))
    assert not {task.seed for task in train} & {task.seed for task in test}
    assert not {task.id for task in train} & {task.id for task in test}


def test_recorded_games_of_alfworld_are_found_and_sliced_ones_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed("alfworld")
    here = RECIPES / "alfworld"
    chores, game = load_object("./task.py:chores", here), load_object("./rooms.py:game", here)
    kind = "pick_and_place_simple"
    for name, solvable in ((f"{kind}-Mug-1", True), (f"{kind}-Mug-2", False), (f"{kind}-AppleSliced-3", True)):
        folder = tmp_path / "json_2.1.1" / "train" / name / "trial"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(json.dumps({**game(kind, "train", 0), "solvable": solvable}))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    (task,) = chores(kind=kind)
    assert task.id == f"{kind}-Mug-1/trial"
    first = load_object("./task.py:gold", here)(json.dumps(task.data["game"]["kwargs"]), task.seed)
    assert first[-1].startswith("move ")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "none"))
    assert next(chores()).id == f"{kind}-0"
    with pytest.raises(TaskError, match="no recorded games"):
        list(chores(games="recorded"))


def test_words_to_the_interpreter_of_textworld_do_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed("textworld")
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    story = load_object("./story.py:Story", RECIPES / "textworld")("treasure_hunter", {"level": 1})
    story.reset(1)
    before = story.key()
    for word in ("save", "quit", "restart", "undo", "tw-print player"):
        assert not story.step(word).done
    assert story.key() == before
    assert not [*tmp_path.rglob("*.qzl")]
    story.close()
