"""Learning curves as a picture, for READMEs and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.types.errors import MissingExtra, StoreError
from agentrl.types.reporter import UNNAMED
from agentrl.view.summary import by_stage, headline, progress, series

Curves = Mapping[str, Sequence[tuple[float, float]]]

_BESIDE = ("reward", "turns", "loss", "entropy", "kl")


def learning_curve(metrics: Iterable[Mapping[str, Any]], out_png: str | Path, title: str) -> None:
    """Plots success (or reward) over iterations, with further metrics of progress in small panels; several stages side
    by side.

    Args:
        metrics: as `RunDir.metrics()` returns them.

    Raises:
        MissingExtra: matplotlib is not installed.
        StoreError: the metrics hold neither a success nor a reward.
    """
    stages = {name: series({**line, "stage": UNNAMED} for line in lines) for name, lines in by_stage(metrics).items()}
    drawn = {name: curves for name, curves in stages.items() if progress(curves) is not None}
    if not any(_plays(curves) for curves in drawn.values()) and not set(drawn) - {UNNAMED}:
        raise StoreError("the metrics hold neither a success nor a reward", remedy="train for an iteration first")
    widths = [10.0 if _plays(curves) else 4.0 for curves in drawn.values()]
    if len(drawn) == 1 and not _beside(*drawn.values()):
        widths = [6.4]
    figure = _figure(sum(widths), 4.2)
    parts = figure.subfigures(1, len(drawn), width_ratios=widths, squeeze=False)[0]
    for part, (name, curves) in zip(parts, drawn.items(), strict=True):
        _draw(part, curves, title if len(drawn) == 1 else f"{title}: {name}")
    figure.savefig(out_png, dpi=120)


def metric_curves(curves: Curves, out_png: str | Path, title: str) -> None:
    """Plots metrics over iterations, a panel each, one below the other.

    Args:
        curves: at least one, by name, as `summary.series` returns them.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure = _figure(6.4, 0.6 + 2.2 * len(curves))
    figure.suptitle(title)
    panels = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, points) in zip(panels, curves.items(), strict=True):
        axes.plot(*zip(*points, strict=True), linewidth=2)
        axes.set_title(name, fontsize=9)
        axes.grid(alpha=0.25)
    panels[-1].set_xlabel("iteration")
    figure.savefig(out_png, dpi=120)


def _figure(width: float, height: float) -> Any:
    """An empty figure, in inches, that draws without a screen."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "train") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plays(curves: Curves) -> bool:
    """Returns True if a stage has episodes."""
    return headline(curves) is not None


def _beside(curves: Curves) -> list[str]:
    """Returns the metrics for the small panels next to the main curve."""
    main = progress(curves)
    names = [name for name in curves if name != main and any(name.endswith(word) for word in _BESIDE)]
    return names[:4] if _plays(curves) else []


def _draw(figure: Any, curves: Curves, title: str) -> None:
    """Plots the main curve of a stage, and further metrics in small panels."""
    from matplotlib.ticker import MaxNLocator

    main, others = progress(curves) or "", _beside(curves)
    short = main.rsplit("/", 1)[-1]
    grid = figure.add_gridspec(2, 4 if others else 2)
    axes = figure.add_subplot(grid[:, :2])
    for name in [main, *(name for name in curves if name != main and name.rsplit("/", 1)[-1] == short)]:
        axes.plot(*zip(*curves[name], strict=True), label=name, linewidth=2)
    axes.set(title=title, xlabel="iteration" if _plays(curves) else "step", ylabel=short)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    for place, name in enumerate(others):
        small = figure.add_subplot(grid[place // 2, 2 + place % 2])
        small.plot(*zip(*curves[name], strict=True), color="0.35")
        small.set_title(name, fontsize=9)
        small.tick_params(labelsize=7)
        small.grid(alpha=0.25)
