"""Tasks that a function generates, level by level: `tasks: {source: generated, args: {by: ./task.py:formula, ...}}`."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agentrl.types.errors import TaskError
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Task

DRAWS = 200
"""So many draws in a row without a new task that fits end the generation of a level with an error."""
HELD_OUT = 5
"""Every fifth task, by a hash of its id, is held out."""


def tasks(
    by: Callable[..., Task],
    levels: Sequence[Mapping[str, Any]] = ({},),
    each: int = 64,
    check: Callable[[Task], bool] | None = None,
    held_out: bool = False,
    seed: int = 0,
) -> Iterator[Task]:
    """Yields `each` different tasks of every level, in the order of the levels.

    The number of a level, from 0, is `task.data["level"]`, which the sampler `levels` reads.

    Args:
        by: the generator, `by(rng, **level)`. It returns a task whose id names its content: tasks with equal ids are
            one task.
        levels: arguments of the generator, the easiest level first.
        check: returns False for a task that must not be used, such as one without a solution; it is drawn anew.
        held_out: yields tasks for evaluation. No seed draws a task for both purposes.

    Raises:
        TaskError: the generator returns something else, or too few different tasks of a level pass the check.
    """
    for number, level in enumerate(levels):
        if not isinstance(level, Mapping):
            raise TaskError(
                f"level {number} is {level!r}",
                place="tasks.args.levels",
                remedy="give the generator's arguments: [{depth: 1}, {depth: 2}]",
            )
        seen: set[str] = set()
        rng = random.Random(derive_seed(seed, "generated", number))
        for index in range(each):
            task = _drawn(by, level, check, held_out, seen, rng)
            if task is None:
                raise TaskError(
                    f"level {number} {dict(level)} gave {index} different tasks that pass `check`, and none more in "
                    f"{DRAWS} draws",
                    place="tasks.args",
                    remedy=f"each: {index}, or a level with more tasks" if index else "mend the generator or `check`",
                )
            seen.add(task.id)
            data = {**task.data, "level": number}
            yield msgspec.structs.replace(task, id=f"{number}/{task.id}", data=data)


def _drawn(
    by: Callable[..., Task],
    level: Mapping[str, Any],
    check: Callable[[Task], bool] | None,
    held_out: bool,
    seen: set[str],
    rng: random.Random,
) -> Task | None:
    """Draws until a task is new and passes the check; None: `DRAWS` draws gave none."""
    for _ in range(DRAWS):
        task = by(rng, **level)
        if not isinstance(task, Task):
            raise TaskError(
                f"the generator returned a {type(task).__name__}, not a Task",
                place="tasks.args.by",
                remedy='return Task.of("id", "instruction", key=value)',
            )
        if task.id not in seen and _is_held_out(task.id) == held_out and (check is None or check(task)):
            return task
    return None


def _is_held_out(id: str) -> bool:
    """Returns True for the ids of tasks that are for evaluation."""
    return hashlib.sha256(id.encode()).digest()[0] % HELD_OUT == 0
