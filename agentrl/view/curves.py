"""Learning curves as a picture, for READMEs and reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentrl.types.errors import MissingExtra, StoreError
from agentrl.view.summary import headline, series

_BESIDE = ("reward", "turns", "loss", "entropy", "kl")


def learning_curve(metrics: Iterable[Mapping[str, Any]], out_png: str | Path, title: str) -> None:
    """Draws success (or reward) over iterations, and beside it what else tells how a run goes.

    Args:
        metrics: as `RunDir.metrics()` returns them.

    Raises:
        MissingExtra: matplotlib is not installed.
        StoreError: the metrics hold neither a success nor a reward.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise MissingExtra("matplotlib", "train") from None
    curves = series(metrics)
    main = headline(curves)
    if main is None:
        raise StoreError("the metrics hold neither a success nor a reward", remedy="train for an iteration first")
    short = main.rsplit("/", 1)[-1]
    others = [name for name in curves if name != main and any(name.endswith(word) for word in _BESIDE)][:4]
    figure = Figure(figsize=(10, 4.2) if others else (6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 4 if others else 2)
    axes = figure.add_subplot(grid[:, :2])
    for name in [main, *(name for name in curves if name != main and name.rsplit("/", 1)[-1] == short)]:
        axes.plot(*zip(*curves[name], strict=True), label=name, linewidth=2)
    axes.set(title=title, xlabel="iteration", ylabel=short)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    for place, name in enumerate(others):
        small = figure.add_subplot(grid[place // 2, 2 + place % 2])
        small.plot(*zip(*curves[name], strict=True), color="0.35")
        small.set_title(name, fontsize=9)
        small.tick_params(labelsize=7)
        small.grid(alpha=0.25)
    figure.savefig(out_png, dpi=120)
