"""`agentrl top`: a run as a live display, while it is written and afterwards."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Group
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from agentrl.store.run_dir import RunDir
from agentrl.types.errors import AgentRLError
from agentrl.view.chart import chart, short, sparkline
from agentrl.view.live import Activity, activity, duration
from agentrl.view.show import STATUS_STYLE, show_episode
from agentrl.view.summary import PROGRESS, failure_line, headline, series
from agentrl.view.terminal import Visible, visible

EVERY_S = 1.0
_EPISODES, _FLIGHTS, _FAILURES = 200, 200, 5
_CURVES = 5  # small ones, below the main one

_FINISHED = ("episode", "status", "stop", "reward", "turns", "tokens", "seconds")
_FLYING = ("in flight", "stage", "for", "turns")


class Top(App[None]):
    """The display of a run.

    Args:
        clock: gives Unix time.
    """

    CSS = """
    #state { height: 2; padding: 0 1; }
    #above { height: 12; }
    #curves { width: 2fr; padding: 0 1; }
    #parts { width: 1fr; padding: 0 1; }
    #flights { width: 2fr; }
    #episodes { width: 3fr; }
    #failures { height: auto; max-height: 6; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "quit"),
        Binding("f", "failed", "failed only"),
        Binding("b", "best", "sort: newest, best, worst"),
        Binding("r", "look", "refresh"),
        Binding("tab", "app.focus_next", "other table", show=True),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._run, self._clock = RunDir.read(path), clock
        self._only_failed = False
        self._orders = [("created_at", True), ("reward", True), ("reward", False)]

    def compose(self) -> ComposeResult:
        """The parts of the screen."""
        yield Static(id="state", markup=False)
        with Horizontal(id="above"):
            yield Static(id="curves", markup=False)
            yield VerticalScroll(Static(id="parts", markup=False), can_focus=False)
        with Horizontal():
            for name, headings in (("episodes", _FINISHED), ("flights", _FLYING)):
                table: DataTable[Text] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
                table.add_columns(*headings)
                yield table
        yield Static(id="failures", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Looks at the run, now and every second."""
        self.action_look()
        self.set_interval(EVERY_S, self.action_look)
        self.query_one("#episodes").focus()

    def on_unmount(self) -> None:
        """Closes the run."""
        self._run.close()

    def action_failed(self) -> None:
        """Lists only failed episodes, or all."""
        self._only_failed = not self._only_failed
        self.action_look()

    def action_best(self) -> None:
        """Takes the next order of the list."""
        self._orders.append(self._orders.pop(0))
        self.action_look()

    def action_look(self) -> None:
        """Shows the run as it is now. A run that is gone is told, and looked for again."""
        try:
            self._run.refresh()
            now = activity(self._run, self._clock())
            counts = self._run.count_by("status")
            self._show_state(now, counts)
            self._show_curves()
            self._fill("flights", (_flying(*each) for each in now.flights[:_FLIGHTS]))
            self._fill("episodes", self._finished())
            self._show("failures", self._failures())
        except (AgentRLError, OSError, sqlite3.Error) as error:
            message = error.message if isinstance(error, AgentRLError) else str(error)
            self._show("state", Text(f"{self._run.path}\nthe run cannot be read: {message}", "bold red"))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Opens an episode."""
        id = str(event.row_key.value)
        if event.data_table.id == "flights":
            self.notify(f"{visible(id)} is in flight: it is stored when it has ended", markup=False)
            return
        try:
            parts = [*show_episode(self._run, id)]
        except AgentRLError as error:
            self.notify(visible(str(error)), severity="error", markup=False)
            return
        self.push_screen(OneEpisode(Group(*(Visible(part) for part in parts))))

    def _show_state(self, now: Activity, counts: dict[str, int]) -> None:
        name = (self._run.info.get("recipe") or {}).get("name") or self._run.path.name
        told = Text.assemble((str(name), "bold"), f"  {self._run.path}  {sum(counts.values())} episodes: ")
        told.append_text(
            Text("  ").join(Text(f"{count} {status}", STATUS_STYLE.get(status, "")) for status, count in counts.items())
        )
        self._show("state", told.append("\n").append(now.state, "bold green" if now.working else "bold yellow"))
        stages = "  ".join(f"{stage} {count}" for stage, count in now.stages.items())
        self._show("parts", Text("\n".join([f"in flight: {stages or 'none'}", *now.parts])))

    def _show_curves(self) -> None:
        curves = series(self._run.metrics())
        if (main := headline(curves)) is None:
            self._show("curves", Text("no metrics yet", "dim"))
            return
        shown = Text.assemble((main, "bold"), f"  {short(curves[main][-1][1])}\n")
        shown.append("\n".join(chart(curves[main], width=70, height=5)), "green").append("\n")
        others = [name for name in curves if name != main and name in PROGRESS][:_CURVES]
        for name in others:
            values = [value for _, value in curves[name]]
            shown.append(f"\n{name:16.16} ").append(sparkline(values, 40), "cyan").append(f" {short(values[-1])}")
        self._show("curves", shown)

    def _finished(self) -> Iterable[tuple[str, list[Text]]]:
        column, descending = self._orders[0]
        # Of each failed status as many as the list has: the newest of both are among them.
        statuses = ("infra_error", "user_error") if self._only_failed else (None,)
        rows = [
            row
            for status in statuses
            for row in self._run.rows(status=status, order=column, descending=descending, limit=_EPISODES)
        ]
        for row in rows:
            reward = Text("-" if row.reward is None else f"{row.reward:.3f}")
            cells = [Text(row.status, STATUS_STYLE.get(row.status, "")), Text(row.error or row.stop), reward]
            numbers = (str(row.turns), str(row.sampled_tokens), f"{row.duration_s:.1f}")
            yield row.id, [Text(row.id), *cells, *map(Text, numbers)]

    def _failures(self) -> Text:
        failures = self._run.failures()
        if not failures:
            return Text("no failures", "dim")
        lines = [f"{entry.get('episode', '')}  {failure_line(entry)}" for entry in failures[-_FAILURES:]]
        return (
            Text("\n".join([f"failures: {len(failures)}", *lines]), "red") if failures else Text("no failures", "dim")
        )

    def _show(self, id: str, text: Text) -> None:
        text.plain = visible(text.plain)
        self.query_one(f"#{id}", Static).update(text)

    def _fill(self, id: str, rows: Iterable[tuple[str, list[Text]]]) -> None:
        """Replaces the rows of a table; the cursor stays on its episode."""
        table = self.query_one(f"#{id}", DataTable)
        at, place = _selected(table), table.scroll_offset
        table.clear()
        for key, cells in rows:
            for cell in cells:
                cell.plain = visible(cell.plain)
            table.add_row(*cells, key=key)
        if at is not None and at in table.rows:
            table.move_cursor(row=table.get_row_index(at), scroll=False)
            table.scroll_to(place.x, place.y, animate=False)


class OneEpisode(Screen[None]):
    """An episode in full."""

    BINDINGS: ClassVar[list[Any]] = [Binding("escape,q", "app.pop_screen", "back")]

    def __init__(self, shown: Group) -> None:
        super().__init__()
        self._shown = shown

    def compose(self) -> ComposeResult:
        """The episode, and the keys."""
        yield VerticalScroll(Static(self._shown, markup=False))
        yield Footer()


def _flying(id: str, flight: Any, seconds: float) -> tuple[str, list[Text]]:
    turns = "-" if flight.turns is None else str(flight.turns)
    return id, [Text(id), Text(flight.stage), Text(duration(seconds)), Text(turns)]


def _selected(table: DataTable[Text]) -> str | None:
    """Returns the episode under the cursor of a table."""
    if not table.row_count:
        return None
    return str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)
