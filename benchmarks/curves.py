"""Curves of trainings, as the README files show them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MANY = 7
"""Lines above which a legend would cover some, and ranges would cover each other."""


@contextmanager
def curves(path: Path, xlabel: str, ylabel: str, title: str = "") -> Iterator[Any]:
    """Axes from 0 to 1 (matplotlib's), with a legend: of many lines outside. The figure is written to `path` at the end
    of the block."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, 1.02), title=title)
    yield axes
    if len(axes.lines) > MANY:
        figure.legend(frameon=False, loc="outside right center")
    else:
        axes.legend(frameon=False, loc="lower right")
    axes.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
