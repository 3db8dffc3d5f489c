"""recipes/scienceworld: its tasks are the package's, and a question of the world is one question everywhere."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from agentrl.registry.references import load_object
from agentrl.types.errors import TaskError

RECIPE = Path(__file__).parents[2] / "recipes" / "scienceworld"
READY = pytest.mark.skipif(
    importlib.util.find_spec("scienceworld") is None or shutil.which("java") is None,
    reason="scienceworld or Java is not installed",
)


@READY
def test_tasks_and_splits_are_those_of_the_package() -> None:
    variations, fold = load_object("./task.py:VARIATIONS", RECIPE), load_object("./task.py:fold", RECIPE)
    with load_object("./task.py:JAVA", RECIPE).lent() as world:
        assert {name: world.get_max_variations(name) for name in world.get_task_names()} == variations
        for name in ("lifespan-longest-lived", "find-plant"):
            world.load(name, 0, "easy")
            splits = world.get_variations_train(), world.get_variations_dev(), world.get_variations_test()
            assert [*splits] == [[*fold(name, split)] for split in ("train", "dev", "test")]


@READY
def test_choices_are_in_order_and_a_number_means_what_was_shown() -> None:
    laboratory = load_object("./task.py:Laboratory", RECIPE)("find-plant", 0)
    laboratory.reset(0)
    closed = laboratory.key()
    question, *choices = laboratory.step("look at door").text.split("\n")
    assert question.startswith("Ambiguous request")
    assert laboratory.key() != closed
    laboratory.step("0")
    assert laboratory.key() == closed
    rooms = [choice.removesuffix(" and hallway").rpartition(" between ")[2] for choice in choices]
    assert rooms == ["art studio", "bedroom", "greenhouse", "kitchen", "living room", "workshop"]
    for k, room in enumerate(rooms):
        assert choices[k].startswith(f"{k}:\t")
        laboratory.step("look at door")
        assert laboratory.step(str(k)).text == f"A door to the {room} (that is open)"
    laboratory.close()


@READY
def test_a_task_that_is_not_there_is_named() -> None:
    experiments = load_object("./task.py:experiments", RECIPE)
    with pytest.raises(TaskError, match="no task 'cook'"):
        next(experiments(task="cook"))
    with pytest.raises(TaskError, match="no split 'exam'"):
        next(experiments(split="exam"))
