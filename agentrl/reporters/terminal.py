"""A live display in the terminal; without a terminal (logs, CI) one line per event."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl.types.episode import Episode
from agentrl.types.figures.of_episodes import earned, turns_of
from agentrl.types.reporter import UNNAMED, Metrics, Reporter, RunStart
from agentrl.view.chart import short, sparkline
from agentrl.view.live import pace
from agentrl.view.summary import PROGRESS, headline, series
from agentrl.view.terminal import Visible

SLOW_S = 2.0
"""Seconds after which work outside the phases of a run is shown; sooner it is not worth a word."""

_PLAIN_EVERY_S = 10.0
_SHOWN_OFFLINE = ("loss", "accuracy", "margin", "grad_norm", "train_s")


class Terminal(Reporter):
    """Shows the current phase, the results of its episodes, and the iterations so far.

    Args:
        rows: number of iterations in the table.
        after_s: seconds before anything is shown, but for warnings: what is done sooner is not worth a word. Above 0,
            notes are left out.
        clock: gives seconds.
    """

    def __init__(
        self,
        *,
        console: Console | None = None,
        rows: int = 8,
        after_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows, self.after_s, self._clock = rows, after_s, clock
        self._due = clock() + after_s
        self.console = console or Console()
        self._metrics: list[dict[str, Any]] = []
        self._stage_of: dict[str, str] = {}
        self._said = -_PLAIN_EVERY_S
        self._works: dict[str, _Work] = {}
        self._live: Live | None = None
        self._begin("", 0)
        if self.console.is_terminal:
            self._live = Live(get_renderable=self.render, console=self.console, refresh_per_second=4)

    def started(self, run: RunStart) -> None:
        self._begin(f"{run.command} {run.name}", 0)
        self._show()

    def ended(self, error: BaseException | None) -> None:
        if self._live:
            self._live.stop()
        elif self.total and not self._metrics and self._said_at != self.done and self._shows:
            self._print(self.status())

    def phase(self, name: str, total: int) -> None:
        again = name == self.name  # a further round of the same phase
        self._begin(name, total)
        self._show()
        if self._live is None and not self._metrics and not again and self._shows:
            self._print(f"{name} ({total})")

    @property
    def _shows(self) -> bool:
        """True once it is time to show something."""
        return self._clock() >= self._due

    def _show(self) -> None:
        """Starts the live display when it is time."""
        if self._live is not None and not self._live.is_started and self._shows:
            self._live.start()

    def _begin(self, name: str, total: int) -> None:
        self.name, self.total, self.done, self._said_at = name, total, 0, -1
        self._statuses: Counter[str] = Counter()
        self._reward_sum, self._scored, self._turns = 0.0, 0, 0
        self._numbers = ""
        self._started = self._clock()

    def step(self, done: int, metrics: Mapping[str, float]) -> None:
        self.done = done
        self._numbers = "  ".join(f"{name} {short(value)}" for name, value in metrics.items())
        self._say_sometimes()

    def work(self, name: str, done: int, total: int) -> None:
        known = self._works.get(name)
        if done == 0 or known is None:
            self._works[name] = _Work(self._clock(), done, total)
            return
        known.done, known.total = done, total
        if done == total:
            self._works.pop(name, None)
        elif self._clock() - known.began >= SLOW_S:
            self._show()
            if self._live is None and self._may_say:
                self._say(f"{name} {self._pace(known)}")

    def _pace(self, work: _Work) -> str:
        return "  ".join(pace(work.done, work.total, self._clock() - work.began))

    def episode_stage(self, episode_id: str, stage: str | None) -> None:
        if stage is None:
            self._stage_of.pop(episode_id, None)
        else:
            self._stage_of[episode_id] = stage

    def episode(self, episode: Episode) -> None:
        self._stage_of.pop(episode.id, None)
        self.done += not episode.forked
        self._statuses[episode.status] += 1
        self._turns += turns_of(episode)
        if episode.scored and (reward := earned(episode)) is not None:
            self._reward_sum += reward
            self._scored += 1
        self._say_sometimes()

    def metrics(self, line: Metrics) -> None:
        self._metrics.append(dict(line))
        if self._live is None:
            values = "  ".join(f"{name} {short(line[name])}" for name in _shown(line))
            self._print(f"{_source(line)} {line.get('iteration', len(self._metrics))}  {values}".strip())

    def note(self, text: str) -> None:
        """Prints a line (above the live display), unless only what takes long is shown."""
        if self.after_s == 0:
            self._print(text)

    def warning(self, text: str) -> None:
        """Prints a warning."""
        self._print(f"warning: {text}")

    def _print(self, text: str) -> None:
        self.console.print(Visible(Text(text)), soft_wrap=True)

    def status(self) -> str:
        """The phase in one line."""
        parts = pace(self.done, self.total, self._clock() - self._started)
        if self._statuses:
            reward = f"{self._reward_sum / self._scored:.3f}" if self._scored else "none"
            counts = " ".join(f"{name}={count}" for name, count in self._statuses.most_common())
            parts += [f"reward {reward}", f"turns {self._turns / self._statuses.total():.1f}", counts]
        return "  ".join([*parts, self._numbers]).rstrip()

    def render(self) -> RenderableType:
        """The live display."""
        lines: list[RenderableType] = []
        if self._metrics:
            lines += [self._table(), *self._curve()]
        now = self._clock()
        slow = [(name, work) for name, work in self._works.copy().items() if now - work.began >= SLOW_S]
        table = Table.grid(padding=(0, 2))
        if self.name or not slow:
            table.add_row(Text(self.name, "bold"), _bar(self.done, self.total), self.status())
        for name, work in slow:
            table.add_row(Text(name, "bold"), _bar(work.done, work.total), self._pace(work))
        lines.append(table)
        if flying := Counter(self._stage_of.values()):
            lines.append(Text("in flight " + "  ".join(f"{n} {c}" for n, c in sorted(flying.items())), "dim"))
        return Group(*lines)

    def _table(self) -> Table:
        columns = list(dict.fromkeys(name for entry in self._metrics[-self.rows :] for name in _shown(entry)))
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("", "iteration", *columns):
            table.add_column(name, justify="right")
        for entry in self._metrics[-self.rows :]:
            cells = (short(entry.get(name)) if name in _shown(entry) else "" for name in columns)
            table.add_row(_source(entry), str(entry.get("iteration", "")), *cells)
        return table

    def _curve(self) -> list[RenderableType]:
        stage = self._metrics[-1].get("stage")
        curves = series(line for line in self._metrics if line.get("stage") == stage)
        main = headline(curves)
        if main is None:
            return []
        values = [value for _, value in curves[main]]
        return [Text.assemble((f"{main} ", "bold"), (sparkline(values, width=60), "green"), f" {values[-1]:.3f}")]

    def _say_sometimes(self) -> None:
        self._show()
        due = self.done == self.total or self._may_say
        if self._live is None and not self._metrics and due and self._shows:
            self._said_at = self.done
            named = "" if self.after_s == 0 else f"{self.name} "  # its beginning was not told
            self._say(named + self.status())

    @property
    def _may_say(self) -> bool:
        """True once the last line about progress is old enough."""
        return self._clock() - self._said >= _PLAIN_EVERY_S

    def _say(self, text: str) -> None:
        self._said = self._clock()
        self._print(text)


@dataclass
class _Work:
    """Work outside the phase: when it began, by the clock, and how far it is."""

    began: float
    done: int
    total: int


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=min(done, max(total, 1)) if total else 0, width=24)


def _shown(line: Metrics) -> list[str]:
    """The shown metrics of a line."""
    names = _SHOWN_OFFLINE if line.get("split") in ("sft", "preference") else PROGRESS
    return [name for name in names if line.get(name) is not None]


def _source(line: Metrics) -> str:
    """The label of a line: its split, after the stage if that has a name."""
    stage, split = line.get("stage", UNNAMED), str(line.get("split", ""))
    return split if stage == UNNAMED else f"{stage} {split}"
