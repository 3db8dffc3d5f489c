"""Output of `agentrl eval`: the metrics, and a table by a field of the tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table


def evaluation(metrics: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Yields a line of metrics, and a table with a row for each value of the field that `--by` named."""
    line: list[str] = []
    rows: dict[str, dict[str, str]] = {}
    for name, value in metrics.items():
        metric, _, of = name.partition("/")
        if "=" in of:
            rows.setdefault(of, {})[metric] = _number(value)
        elif name != "split":
            line.append(f"{name} {_number(value)}")
    yield ", ".join(line)
    if rows:
        columns = list(dict.fromkeys(metric for row in rows.values() for metric in row))
        table = Table("", *columns, box=None, padding=(0, 2, 0, 0))
        for of, row in rows.items():
            table.add_row(of, *(row.get(column, "") for column in columns))
        yield table


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"
