"""The stop rule of a stage. It depends only on the stage's lines in `metrics.jsonl`: a resumed run decides the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.config.stages import StopSettings
from agentrl.types.errors import nearest
from agentrl.types.figures.sums import reaches


def reached(stop: StopSettings | None, lines: Iterable[Mapping[str, Any]]) -> str | None:
    """The reason why the stage ends here; None if it continues.

    Args:
        lines: the stage's lines so far.
    """
    if stop is None:
        return None
    values = _means(_values(stop, lines), stop.window)
    if not values:
        return None
    last, name = values[-1], stop.metric
    if stop.at_least is not None and reaches(last, stop.at_least):
        return f"{name} is {last:.4g}, at least {stop.at_least:g}"
    if stop.at_most is not None and reaches(-last, -stop.at_most):
        return f"{name} is {last:.4g}, at most {stop.at_most:g}"
    if stop.patience is not None and (waited := _since_best(values, stop.better == "higher")) >= stop.patience:
        return f"{name} is no better than {waited} lines ago"
    return None


def missing(stop: StopSettings, line: Mapping[str, Any]) -> str | None:
    """A warning if the line lacks the metric; None if it has it, or if it is a line of the other kind."""
    name = stop.metric.removeprefix("eval/")
    if (line["split"] == "eval") != stop.evaluates or name in line or f"rewards/{name}" in line:
        return None
    known = [key for key, value in line.items() if isinstance(value, int | float) and key != "iteration"]
    return f"stop.metric: the {line['split']} line of iteration {line['iteration']} has no {name!r}; " + nearest(
        name, known
    )


def _values(stop: StopSettings, lines: Iterable[Mapping[str, Any]]) -> list[float]:
    """The metric in the lines that have it: evaluation lines for `eval/NAME`, else training lines."""
    own = (number_in(line, stop.metric) for line in lines if (line["split"] == "eval") == stop.evaluates)
    return [value for value in own if value is not None]


def number_in(line: Mapping[str, Any], metric: str) -> float | None:
    """Returns a metric of a line, with or without `eval/` before its name; None if the line has no such number.

    The name of a reward component alone is the mean of its values, the metric `rewards/NAME`.
    """
    name = metric.removeprefix("eval/")
    value = line.get(name, line.get(f"rewards/{name}"))
    return float(value) if isinstance(value, int | float) else None


def _means(values: Sequence[float], window: int) -> list[float]:
    return [sum(values[end - window : end]) / window for end in range(window, len(values) + 1)]


def _since_best(values: Sequence[float], higher: bool) -> int:
    """Number of values after the first best one."""
    best = max(values) if higher else min(values)
    return len(values) - 1 - values.index(best)
