"""Success in several tries of a task: pass@k and pass^k, and tables by a field of the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb
from typing import Any, NamedTuple

from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError, nearest
from agentrl.types.figures.of_episodes import succeeded, success_of
from agentrl.types.task import Task


class Tries(NamedTuple):
    """The measured tries of a task: how many, how many succeeded, and the value of the field that tables are by."""

    n: int
    successes: int
    value: str | None


def passes(episodes: Iterable[Episode], k: int, by: str | None = None) -> dict[str, float]:
    """Returns metrics of an evaluation with `k` tries of each task.

    `pass@j` is the probability that at least one of j tries succeeds, `pass^j` that all j do, for the powers of two up
    to k, and k; both unbiased, from all tries of a task (Chen et al. 2021, arXiv:2107.03374, section 2.1; Yao et al.
    2024, arXiv:2406.12045, section 3). Tries that were not measured do not count: a task with fewer than j measured
    tries is left out of the mean.

    Args:
        by: a field of the tasks' data. Each metric, and `tasks`, is also given by its values, as `METRIC/FIELD=VALUE`.
    """
    tried = _tried(episodes, by)
    found = _metrics(tried, k) if k > 1 else {}
    for value in dict.fromkeys(each.value for each in tried if each.value is not None):
        of_value = [each for each in tried if each.value == value]
        metrics = {"tasks": float(len(of_value)), **_metrics(of_value, k)}
        found |= {f"{name}/{by}={value}": number for name, number in metrics.items()}
    return found


def require_field(tasks: Iterable[Task], by: str) -> None:
    """Refuses a field that no task has.

    Raises:
        RecipeError: no task has it, which names the nearest one.
    """
    known = sorted({name for task in tasks for name in task.data})
    if by not in known:
        raise RecipeError(
            f"no task of the evaluation has the field {by!r}",
            place="eval.by",
            remedy=nearest(by, known, "fields of the tasks' data are"),
        )


def _tried(episodes: Iterable[Episode], by: str | None) -> list[Tries]:
    tasks: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.scored and success_of(episode) is not None:
            tasks.setdefault(episode.group_id, []).append(episode)
    return [Tries(len(tries), sum(map(succeeded, tries)), _value(tries[0].task.data, by)) for tries in tasks.values()]


def _value(data: dict[str, Any], by: str | None) -> str | None:
    return str(data[by]) if by is not None and by in data else None


def _metrics(tried: Sequence[Tries], k: int) -> dict[str, float]:
    found = {"success": sum(each.successes for each in tried) / sum(each.n for each in tried)} if tried else {}
    for j in sizes(k):
        known = [each for each in tried if each.n >= j]
        if known:
            found[f"pass@{j}"] = sum(1 - comb(each.n - each.successes, j) / comb(each.n, j) for each in known) / len(
                known
            )
            found[f"pass^{j}"] = sum(comb(each.successes, j) / comb(each.n, j) for each in known) / len(known)
    return found


def sizes(k: int) -> list[int]:
    """Returns the powers of two up to k, and k; none for a single try."""
    return sorted({*(2**i for i in range(k.bit_length()) if 2**i <= k), k}) if k > 1 else []
