"""Live progress in the terminal; one line per event where there is no terminal (logs, CI)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.episode.record import Episode
from agentrl.view.show import STATUS_STYLE
from agentrl.view.summary import headline, series

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN_EVERY_S = 2.0
_SHOWN = ("success", "reward", "turns", "loss", "entropy", "kl", "seconds")


class _Rendered(Protocol):
    def render(self) -> RenderableType: ...


class _Screen:
    """What both kinds of progress share: a live block in a terminal, lines elsewhere, notes above."""

    def __init__(self, source: _Rendered, console: Console | None) -> None:
        self.console = console or Console()
        self.live: Live | None = None
        if self.console.is_terminal:
            get = source.render
            self.live = Live(get_renderable=get, console=self.console, refresh_per_second=4, transient=False)

    def start(self) -> None:
        if self.live:
            self.live.start()

    def stop(self) -> None:
        if self.live:
            self.live.stop()

    def line(self, text: str | Text) -> None:
        """Prints above the live block."""
        self.console.print(text, highlight=False, soft_wrap=True)


class RolloutProgress:
    """Progress of a rollout.

    Args:
        total: episodes that are planned.
        done: how many of them are stored already (a resumed run).
    """

    def __init__(self, total: int, *, done: int = 0, console: Console | None = None) -> None:
        self.total = total
        self.done = done
        self._resumed = done
        self._statuses: Counter[str] = Counter()
        self._phases: Counter[str] = Counter()
        self._phase_of: dict[str, str] = {}
        self._reward_sum, self._scored = 0.0, 0
        self._turns = 0
        self._started = time.monotonic()
        self._said = 0.0
        self._screen = _Screen(self, console)

    def __enter__(self) -> RolloutProgress:
        self._screen.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._screen.live is None and self.done > self._resumed:
            self._screen.line(self.status())
        self._screen.stop()

    def phase(self, episode_id: str, phase: str | None) -> None:
        """An episode in flight enters a phase (`sandbox`, `generate`, `tools`, `score`); None: it is gone."""
        if (before := self._phase_of.pop(episode_id, None)) is not None:
            self._phases[before] -= 1
        if phase is not None:
            self._phase_of[episode_id] = phase
            self._phases[phase] += 1

    def episode(self, episode: Episode) -> None:
        """An episode has ended."""
        self.phase(episode.id, None)
        self.done += 1
        self._statuses[episode.status] += 1
        self._turns += len(episode.turns)
        if episode.scored and episode.reward is not None:
            self._reward_sum += episode.reward
            self._scored += 1
        if self._screen.live is None and time.monotonic() - self._said > _PLAIN_EVERY_S:
            self._said = time.monotonic()
            self._screen.line(self.status())

    def note(self, text: str) -> None:
        """Prints a line above the progress."""
        self._screen.line(text)

    def status(self) -> str:
        """The progress in one line."""
        fresh = self.done - self._resumed
        seconds = max(time.monotonic() - self._started, 1e-9)
        reward = f"{self._reward_sum / self._scored:.3f}" if self._scored else "none"
        counts = " ".join(f"{name}={count}" for name, count in self._statuses.most_common())
        turns = self._turns / max(fresh, 1)
        return (
            f"{self.done}/{self.total} episodes  {fresh / seconds:.1f}/s  "
            f"reward {reward}  turns {turns:.1f}  {counts}".rstrip()
        )

    def render(self) -> RenderableType:
        """The live block."""
        counts = Text("  ").join(
            Text(f"{name} {count}", STATUS_STYLE.get(name, "")) for name, count in self._statuses.most_common()
        )
        flying = "  ".join(f"{name} {count}" for name, count in sorted(self._phases.items()) if count)
        head = self.status().split("  ")
        line = Table.grid(padding=(0, 2))
        line.add_row(ProgressBar(total=max(self.total, 1), completed=self.done, width=30), *head[:4])
        lines: list[RenderableType] = [line, Text.assemble("ended     ", counts)]
        if flying:
            lines.append(Text(f"in flight {flying}", "dim"))
        return Group(*lines)


class TrainProgress:
    """Progress of training: the last iterations as a table, success (or reward) as a curve.

    Args:
        total: iterations that are planned.
        rows: how many iterations the table holds.
    """

    def __init__(self, total: int, *, console: Console | None = None, rows: int = 10) -> None:
        self.total = total
        self.rows = rows
        self._metrics: list[dict[str, Any]] = []
        self._note = ""
        self._ended: Counter[str] = Counter()
        self._screen = _Screen(self, console)

    def __enter__(self) -> TrainProgress:
        self._screen.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._note = ""
        self._screen.stop()

    def episode(self, episode: Episode) -> None:
        """An episode of the current iteration has ended."""
        self._ended[episode.status] += 1
        counts = "  ".join(f"{name} {count}" for name, count in self._ended.most_common())
        self._note = f"rolling out: {counts}"

    def iteration(self, metrics: Mapping[str, Any]) -> None:
        """An iteration has ended. Shown: `iteration` and those of `_SHOWN` that there are."""
        self._metrics.append(dict(metrics))
        self._ended.clear()
        self._note = ""
        if self._screen.live is None:
            self._screen.line(self.status())

    def note(self, text: str) -> None:
        """In a terminal the line below the table until the next event, elsewhere a line of its own."""
        self._note = text
        if self._screen.live is None:
            self._screen.line(text)

    def status(self) -> str:
        """The last iteration in one line."""
        if not self._metrics:
            return f"iteration 0/{self.total}"
        last = self._metrics[-1]
        values = "  ".join(f"{name} {_short(last[name])}" for name in self._columns() if last.get(name) is not None)
        return f"iteration {last.get('iteration', len(self._metrics))}/{self.total}  {values}"

    def render(self) -> RenderableType:
        """The live block."""
        columns = self._columns()
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("iteration", *columns):
            table.add_column(name, justify="right")
        for entry in self._metrics[-self.rows :]:
            table.add_row(str(entry.get("iteration", "")), *(_short(entry.get(name)) for name in columns))
        curves = series(self._metrics)
        main = headline(curves)
        lines: list[RenderableType] = [table] if self._metrics else []
        if main:
            values = [value for _, value in curves[main]]
            curve = sparkline(values, width=60)
            lines.append(Text.assemble((f"{main} ", "bold"), (curve, "green"), f" {values[-1]:.3f}"))
        if self._note or not lines:
            lines.append(Text(self._note or self.status(), "dim"))
        return Group(*lines)

    def _columns(self) -> list[str]:
        known = {name for entry in self._metrics for name in entry}
        return [name for name in _SHOWN if name in known]


def sparkline(values: list[float], width: int = 60) -> str:
    """A curve of block characters; longer ones are averaged down to `width`."""
    if not values:
        return ""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(values), max(values) - min(values)
    return "".join(_BLOCKS[round((value - low) / span * 7) if span else 3] for value in values)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) >= 1000 or 0 < abs(value) < 0.001 else f"{value:.3f}"
    return "" if value is None else str(value)
