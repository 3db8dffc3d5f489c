"""`agentrl diff` and `plot`: two runs side by side, and the metrics of a run as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from agentrl.commands.output import write, write_json
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import StoreError, nearest
from agentrl.view.chart import chart, short
from agentrl.view.compare import Comparison, TaskPair, compare
from agentrl.view.curves import Curves, learning_curve, metric_curves
from agentrl.view.summary import PROGRESS, series
from agentrl.view.terminal import Unwrapped

_PICTURES = (".png", ".svg", ".pdf")

Values = Mapping[str, tuple[float | None, float | None]]


def diff(a: Path, b: Path, *, split: str | None, limit: int, as_json: bool) -> None:
    """Prints how two runs differ."""
    with RunDir.read(a) as one, RunDir.read(b) as other:
        found = compare(one, other, split)
    write_json({"a": a, "b": b, **_fields(found)}) if as_json else write(*_shown(found, a, b, limit))


def _fields(found: Comparison) -> dict[str, object]:
    return {name: getattr(found, name) for name in found.__struct_fields__}


def _shown(found: Comparison, a: Path, b: Path, limit: int) -> list[RenderableType]:
    parts: list[RenderableType] = [Text.assemble(("A ", "bold"), str(a)), Text.assemble(("B ", "bold"), str(b)), Text()]
    if found.settings:
        table = _table("setting", "A", "B", left=3)
        for each in found.settings:
            table.add_row(Text(each.key), *(Text(_value(value)) for value in (each.a, each.b)))
        parts += [table, Text()]
    else:
        parts += [Text("the same configuration, code and versions"), Text()]
    if found.split is None:
        parts.append(Text("no task is scored in both runs", "yellow"))
    else:
        told = f"B is better in {found.won}, worse in {found.lost}, equal in {found.tied}"
        parts += [Text(f"{found.split}: {len(found.tasks)} tasks in both; {told}", "bold"), _tasks(found.tasks[:limit])]
        if len(found.tasks) > limit:
            parts.append(Text(f"({limit} of {len(found.tasks)} tasks; --limit shows more, --json all)", "dim"))
    parts += [Text(), _side_by_side("", found.counts)]
    telling = {name: pair for name, pair in found.metrics.items() if name.rsplit("/", 1)[-1] in PROGRESS}
    if telling:
        parts += [Text(), _side_by_side("last value", telling)]
    if more := len(found.metrics) - len(telling):
        parts.append(Text(f"({more} more metrics; --json shows all)", "dim"))
    return parts


def _tasks(pairs: Sequence[TaskPair]) -> Table:
    table = _table("task", "A", "B", "B - A", "episodes")
    for pair in pairs:
        episodes = (
            f"{pair.episodes_a}" if pair.episodes_a == pair.episodes_b else f"{pair.episodes_a}/{pair.episodes_b}"
        )
        table.add_row(Text(pair.task), f"{pair.a:.3f}", f"{pair.b:.3f}", _change(pair.a, pair.b, good=True), episodes)
    return table


def _side_by_side(heading: str, values: Values) -> Table:
    table = _table(heading, "A", "B", "B - A")
    for name, (a, b) in values.items():
        table.add_row(Text(name), short(a) or "-", short(b) or "-", _change(a, b))
    return table


def _change(a: float | None, b: float | None, *, good: bool = False) -> Text:
    """The difference; `good`: coloured, because more is better."""
    if a is None or b is None:
        return Text()
    colour = "" if not good or a == b else "green" if b > a else "red"
    return Text(f"{b - a:+.4g}", colour)


def _value(value: object) -> str:
    return "none" if value is None else str(value)


def _table(*headings: str, left: int = 1) -> Table:
    """A table whose first columns are text, and the others numbers."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < left else "right", overflow="fold")
    return table


def plot(path: Path, *, metrics: Sequence[str], out: Path | None, as_json: bool) -> None:
    """Prints curves of a run, or draws them in a picture; without `metrics` that is the learning curve.

    Raises:
        StoreError: the run has no metrics, or not these.
    """
    with RunDir.read(path) as run:
        lines, title = run.metrics(), str((run.info.get("recipe") or {}).get("name") or path.resolve().name)
    if out is not None and out.suffix not in _PICTURES:
        raise typer.BadParameter(f"--out {out}: the name of a picture ends in {', '.join(_PICTURES)}")
    if out is not None and not metrics:
        out.parent.mkdir(parents=True, exist_ok=True)
        learning_curve(lines, out, title=title)
    else:
        curves = series(lines)
        shown = {name: curves[name] for name in _chosen(metrics, curves, path)}
        if out is None:
            write_json({"run": path, "curves": shown}) if as_json else _print(shown, curves)
            return
        out.parent.mkdir(parents=True, exist_ok=True)
        metric_curves(shown, out, title=title)
    write_json({"picture": out}) if as_json else write(Unwrapped(Text(str(out))))


def _chosen(metrics: Sequence[str], curves: Curves, path: Path) -> list[str]:
    """Returns the names of the metrics to show: those given, else those of progress, success and reward first."""
    if not curves:
        raise StoreError(
            "the run has no metrics",
            place=str(path),
            remedy="a training or an evaluation writes them: agentrl show RUN",
        )
    for name in metrics:
        if name not in curves:
            raise StoreError(f"the run has no metric {name!r}", place=str(path), remedy=nearest(name, curves))
    telling = {name: name.rsplit("/", 1)[-1] for name in curves}
    of_progress = sorted(
        (name for name, last in telling.items() if last in PROGRESS), key=lambda name: PROGRESS.index(telling[name])
    )
    return [*metrics] or of_progress or [*curves]


def _print(shown: Curves, curves: Curves) -> None:
    for name, points in shown.items():
        head = Text.assemble((name, "bold"), f"  {short(points[0][1])} -> {short(points[-1][1])}")
        write(Unwrapped(head), Unwrapped(Text("\n".join(chart(points)), "green")), Text())
    if more := len(curves) - len(shown):
        others = ", ".join(_others(curves, shown))
        write(Text(f"({more} more metrics; --metric NAME plots one: {others})", "dim"))


def _others(curves: Curves, shown: Curves) -> list[str]:
    """The first few names of the metrics that are not shown."""
    names = [name for name in curves if name not in shown]
    return [*names[:6], *(["..."] if len(names) > 6 else [])]
