"""recipes/scienceworld: its tasks are the package's, and a question of the world is one question everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.registry.references import load_object
from agentrl.types.errors import TaskError
from tests.environments.packages import needs

RECIPE = Path(__file__).parents[2] / "recipes" / "scienceworld"


@pytest.mark.slow
def test_tasks_and_splits_are_those_of_the_package() -> None:
    needs("scienceworld")
    variations, fold = load_object("./task.py:VARIATIONS", RECIPE), load_object("./task.py:fold", RECIPE)
    with load_object("./task.py:JAVA", RECIPE).lent() as world:
        assert {name: world.get_max_variations(name) for name in world.get_task_names()} == variations
        name = "lifespan-longest-lived"  # its variations are no multiple of four
        world.load(name, 0, "easy")
        splits = [world.get_variations_train(), world.get_variations_dev(), world.get_variations_test()]
        assert splits == [[*fold(name, split)] for split in ("train", "dev", "test")]


@pytest.mark.slow
def test_an_experiment_is_the_same_whatever_was_played_before() -> None:
    """Things of one name are listed in the order of their hashes, which is another one in each world by default."""
    needs("scienceworld")

    def played() -> list[object]:
        laboratory = load_object("./task.py:Laboratory", RECIPE)("find-animal", 1)
        seen: list[object] = [laboratory.reset(0)]
        for move in ("look at door", "1", "teleport to art studio", "look around"):
            seen += [laboratory.step(move), laboratory.key()]
        laboratory.close()
        return seen

    first = played()
    for variation in (0, 2):
        other = load_object("./task.py:Laboratory", RECIPE)("find-plant", variation)
        other.reset(0)
        other.close()
        assert played() == first


@pytest.mark.slow
def test_an_open_question_is_part_of_the_state() -> None:
    needs("scienceworld")
    laboratory = load_object("./task.py:Laboratory", RECIPE)("find-plant", 0)
    laboratory.reset(0)
    closed = laboratory.key()
    assert laboratory.step("look at door").text.startswith("Ambiguous request")
    assert laboratory.key() != closed
    assert laboratory.step("0").text.startswith("A door to the ")
    assert laboratory.key() == closed
    laboratory.close()


def test_a_task_that_is_not_there_is_named() -> None:
    needs("scienceworld")
    experiments = load_object("./task.py:experiments", RECIPE)
    with pytest.raises(TaskError, match="no task 'cook'"):
        next(experiments(task="cook"))
    with pytest.raises(TaskError, match="no split 'exam'"):
        next(experiments(split="exam"))
