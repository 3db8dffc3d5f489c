"""Generated tasks: levels, the check, held-out tasks, and errors; and the sampler that rises through levels."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.generated import tasks
from agentrl.curriculum.methods.levels import Levels
from agentrl.curriculum.task_source import TaskSource, load_tasks
from agentrl.types.errors import TaskError
from agentrl.types.task import Task
from tests.curriculum.test_parts import context, group, source


def number(rng: random.Random, below: int) -> Task:
    drawn = rng.randrange(below)
    return Task.of(str(drawn), f"Count to {drawn}.", to=drawn)


def even(task: Task) -> bool:
    return bool(task.data["to"] % 2 == 0)


def test_each_level_has_different_tasks_and_a_seed_repeats_them() -> None:
    levels = [{"below": 100}, {"below": 1000}]
    made = list(tasks(number, levels, each=8, seed=3))
    assert [task.data["level"] for task in made] == [0] * 8 + [1] * 8
    assert len({task.id for task in made}) == 16
    assert made == list(tasks(number, levels, each=8, seed=3))
    assert made != list(tasks(number, levels, each=8, seed=4))


def test_a_task_that_the_check_refuses_is_drawn_anew() -> None:
    assert all(even(task) for task in tasks(number, [{"below": 100}], each=20, check=even))


def test_no_seed_draws_a_task_for_training_and_for_evaluation() -> None:
    drawn = {
        held_out: {task.id for seed in range(20) for task in tasks(number, [{"below": 50}], 4, None, held_out, seed)}
        for held_out in (False, True)
    }
    assert not drawn[False] & drawn[True]
    assert len(drawn[False]) > len(drawn[True]) > 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"levels": [{"below": 4}], "each": 9}, r"level 0 \{'below': 4\} gave [1-4] different tasks"),
        ({"levels": [{"below": 9}], "check": lambda task: False}, "gave 0 different tasks that pass `check`"),
        ({"by": lambda rng: "a task"}, "the generator returned a str, not a Task"),
        ({"levels": [3]}, "level 0 is 3"),
    ],
)
def test_a_generator_that_does_not_deliver_is_an_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        list(tasks(**{"by": number, **arguments}))


def test_a_recipe_names_its_generator(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(
        "from agentrl import Task\n"
        "def digit(rng, most): return Task.of(str(n := rng.randint(0, most)), 'Go.', n=n)\n"
        "def solvable(task): return task.data['n'] > 2\n"
        "def broken(rng): raise KeyError('letter')\n"
    )
    args = {"by": "./task.py:digit", "levels": [{"most": 90}], "each": 5, "check": "./task.py:solvable"}
    found = load_tasks(TaskSettings(source="generated", args=args), tmp_path, seed=0)
    assert len(found) == 5
    assert all(task.data["n"] > 2 for task in found.tasks)
    with pytest.raises(TaskError, match="KeyError: 'letter'"):
        load_tasks(TaskSettings(source="generated", args={"by": "./task.py:broken"}), tmp_path, seed=0)


def of_level(*levels: Any) -> TaskSource:
    return TaskSource([Task.of(f"t{k}", "Go.", level=level) for k, level in enumerate(levels)])


def levels_part(**settings: Any) -> Levels:
    part = Levels(Levels.Settings(**settings))
    part.name = "levels"
    return part


def test_the_next_level_begins_when_enough_of_this_one_is_solved() -> None:
    part, known = levels_part(at=0.75, groups=2), of_level(0, 2, 0, 1)
    drawn = [task.id for task in part.draw(known, 3, context(0))]
    assert drawn == ["t0", "t2", "t0"]  # in turn
    easy, harder = known.tasks[0], known.tasks[3]
    part.observe([group(easy, 1, 1)], context(0))
    assert part.metrics() == {"level": 0.0, "solved": 1.0}  # one group of two
    part.observe([group(easy, 0, 1)], context(1))
    assert part.metrics() == {"level": 1.0}  # 3/4 of the last two
    assert [task.id for task in part.draw(known, 1, context(2))] == ["t3"]
    part.observe([group(easy, 1, 1), group(harder, 0, 0), group(harder, 1, 0)], context(2))
    assert part.metrics() == {"level": 1.0, "solved": 0.25}  # a group of another level does not count
    part.observe([group(harder, 1, 1), group(harder, 1, 1)], context(3))
    part.draw(known, 1, context(4))
    part.observe([group(known.tasks[1], 1, 1)] * 2, context(4))
    assert part.metrics() == {"level": 2.0, "solved": 1.0}  # the last level stays


def test_a_resumed_sampler_goes_on_at_its_level() -> None:
    part, again, known = levels_part(groups=1), levels_part(groups=1), of_level(0, 1, 1)
    part.draw(known, 1, context(0))
    part.observe([group(known.tasks[0], 1)], context(0))
    part.draw(known, 1, context(1))
    again.load_state_dict(part.state_dict())
    assert [task.id for task in again.draw(known, 1, context(2))] == ["t2"]


def test_groups_of_a_record_change_no_level() -> None:
    part = levels_part(groups=1)
    part.observe([group(of_level(0).tasks[0], 1)], context(0))
    assert part.metrics() == {}


def test_a_level_is_a_number() -> None:
    with pytest.raises(TaskError, match="task 't0' has the level 'easy', which is not a number"):
        levels_part().draw(of_level("easy"), 1, context(0))
    with pytest.raises(TaskError, match="has no data 'level'"):
        levels_part().draw(source("a"), 1, context(0))
