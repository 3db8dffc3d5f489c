"""Values of turns as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from agentrl.types.errors import MissingExtra


class Valued(Protocol):
    """A turn with its value, its change of the value, and its credit."""

    @property
    def turn(self) -> int: ...
    @property
    def value(self) -> float: ...
    @property
    def value_error(self) -> float: ...
    @property
    def worth(self) -> float: ...
    @property
    def worth_error(self) -> float: ...
    @property
    def credit(self) -> float | None: ...


def draw_values(turns: Sequence[Valued], path: str | Path, title: str, estimator: str) -> None:
    """Plots the value before each turn; below it the change by the turn next to the credit of an estimator.

    Args:
        path: a `.svg` or `.png` file.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "train") from None
    figure = Figure(figsize=(max(6.4, 0.5 * len(turns)), 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    numbers = [each.turn for each in turns]
    above.errorbar(numbers, [t.value for t in turns], [t.value_error for t in turns], marker="o", capsize=3)
    above.set(title=title, ylabel="mean outcome reward")
    below.bar([k - 0.2 for k in numbers], [t.worth for t in turns], 0.4, yerr=[t.worth_error for t in turns], capsize=2)
    below.set(xlabel="turn", ylabel="worth of the turn")
    below.axhline(0, color="0.3", linewidth=0.8)
    if any(each.credit is not None for each in turns):
        beside = below.twinx()
        beside.bar([k + 0.2 for k in numbers], [t.credit or 0.0 for t in turns], 0.4, color="tab:orange")
        beside.set_ylabel(f"credit: {estimator}", color="tab:orange")
        for axes in (below, beside):
            most = max(map(abs, axes.get_ylim()))
            axes.set_ylim(-most, most)
    for axes in (above, below):
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=120)
