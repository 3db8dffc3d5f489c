import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.commands.output import progress
from agentrl.reporters import reporting
from agentrl.reporters.terminal import Terminal
from agentrl.types.reporter import RunStart, report_work
from tests.store.make import make_episode


@contextmanager
def shown(console: Console) -> Iterator[Terminal]:
    terminal = Terminal(console=console)
    terminal.started(RunStart(path=Path(), id="1", name="house", command="train", recipe={}))
    yield terminal
    terminal.ended(None)


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200), out


def test_a_rollout_without_a_terminal_prints_lines():
    console, out = plain()
    with shown(console) as progress:
        progress.note("2 are stored")
        progress.phase("episodes", 3)
        for i, reward in enumerate([1.0, 0.0, None]):
            progress.episode_stage(f"e{i}", "agent")
            progress.episode(make_episode(f"e{i}", reward=reward, status="done" if i < 2 else "infra_error"))
    assert "\x1b" not in out.getvalue()
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["2 are stored", "episodes (3)"]
    assert len([line for line in lines if line.startswith("3/3")]) == 1
    assert lines[-1].startswith("3/3")
    assert "reward 0.500" in lines[-1], "what was never scored is not in the mean"
    assert "done=2 infra_error=1" in lines[-1]


def test_a_short_phase_still_says_how_it_ended_and_a_further_round_says_nothing():
    console, out = plain()
    with shown(console) as progress:
        progress._said = math.inf  # as if something had just been printed
        progress.phase("warm start", 2)
        progress.step(1, {"loss": 3.0})
        progress.step(2, {"loss": 1.5})
        for _ in range(2):
            progress.phase("iteration 1/4", 8)
    assert out.getvalue().count("iteration 1/4 (8)") == 1
    assert "loss 1.50" in out.getvalue()
    assert "loss 3.00" not in out.getvalue()


def test_episodes_in_flight_are_counted_by_stage():
    console, _ = plain()
    progress = Terminal(console=console)
    for episode, stage in (("a", "sandbox"), ("b", "agent"), ("a", "agent")):
        progress.episode_stage(episode, stage)
    with console.capture() as capture:
        console.print(progress.render())
    assert "in flight agent 2" in capture.get()
    progress.episode_stage("a", None)
    progress.episode(make_episode("b"))
    with console.capture() as capture:
        console.print(progress.render())
    assert "in flight" not in capture.get()


def test_training_prints_a_line_per_iteration():
    console, out = plain()
    with shown(console) as progress:
        for i in range(3):
            progress.metrics({"split": "train", "iteration": i + 1, "success": i / 2, "other": "x"})
    assert out.getvalue().splitlines() == [
        "train 1  success 0.000",
        "train 2  success 0.500",
        "train 3  success 1.000",
    ]


def test_in_a_terminal_there_is_a_table_and_a_curve():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with shown(console) as progress:
        progress.phase("iteration", 2)
        progress.step(1, {"loss": 0.5})
        for i in range(3):
            progress.metrics({"iteration": i + 1, "reward": i / 2, "turns": 4.0})
    assert "▁▅█" in out.getvalue()
    assert "loss 0.5" in out.getvalue()


def test_a_note_controls_no_terminal():
    console, out = plain()
    with shown(console) as progress:
        progress.note("failed: \x1b[2J [bold]no markup[/bold]")
    assert out.getvalue() == "failed: ␛[2J [bold]no markup[/bold]\n"


def test_the_rate_and_the_time_left_are_told_at_most_every_10_seconds():
    now = 0.0
    console, out = plain()
    progress = Terminal(console=console, clock=lambda: now)
    progress.started(RunStart(path=Path(), id="1", name="house", command="rollout", recipe={}))
    progress.phase("episodes", 100)
    for done in range(1, 51):
        now = float(done)
        progress.step(done, {})
    lines = out.getvalue().splitlines()
    assert lines[0] == "episodes (100)"
    assert lines[1:4] == ["1/100  1.0/s", "11/100  1.0/s  1:29 left", "21/100  1.0/s  1:19 left"]
    assert len(lines) == 6


def test_what_is_short_says_nothing_and_what_is_long_says_how_far_it_is():
    for seconds, told in ((0.01, []), (0.1, ["checking 20/100  10.0/s  0:08 left", "checking 100/100  10.0/s"])):
        now = 0.0
        console, out = plain()
        progress = Terminal(console=console, after_s=2.0, clock=lambda: now)  # noqa: B023
        progress.phase("checking", 100)
        for done in range(1, 101):
            now = done * seconds
            progress.step(done, {})
        progress.ended(None)
        assert out.getvalue().splitlines() == told


def test_in_a_terminal_what_is_long_gets_a_bar():
    for seconds, shown_at_all in ((1.0, False), (3.0, True)):
        now = 0.0
        out = io.StringIO()
        console = Console(file=out, width=100, force_terminal=True)
        progress = Terminal(console=console, after_s=2.0, clock=lambda: now)  # noqa: B023
        progress.phase("checking", 10)
        now = seconds
        progress.step(5, {})
        progress.ended(None)
        assert ("checking" in out.getvalue()) == shown_at_all
        assert ("━" in out.getvalue()) == shown_at_all


def test_work_beside_the_phase_is_told_after_2_seconds_and_at_most_every_10():
    now = 0.0
    console, out = plain()
    terminal = Terminal(console=console, clock=lambda: now)
    for each, total in (("short", 9), ("long", 320)):
        terminal.work(each, 0, total)
        began = now
        for done in range(1, total + 1):
            now = began + done / 8
            terminal.work(each, done, total)
    assert out.getvalue().splitlines() == [
        "long 16/320  8.0/s  0:38 left",
        "long 96/320  8.0/s  0:28 left",
        "long 176/320  8.0/s  0:18 left",
        "long 256/320  8.0/s  0:08 left",
    ]


def test_work_of_unknown_length_has_a_rate():
    now = 0.0
    console, out = plain()
    terminal = Terminal(console=console, clock=lambda: now)
    terminal.work("unpack", 0, 0)
    now = 4.0
    terminal.work("unpack", 8, 0)
    assert out.getvalue() == "unpack 8  2.0/s\n"


def test_work_has_a_bar_of_its_own_beside_that_of_the_phase():
    now = 0.0
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    terminal = Terminal(console=console, clock=lambda: now)
    terminal.phase("episodes", 64)
    terminal.work("index", 0, 100)

    def drawn() -> list[str]:
        page = Console(file=io.StringIO(), width=100)
        page.print(terminal.render())
        return page.file.getvalue().splitlines()

    now = 1.0
    terminal.work("index", 10, 100)
    assert [line.split()[0] for line in drawn()] == ["episodes"]
    now = 4.0
    terminal.work("index", 40, 100)
    assert [line.split()[0] for line in drawn()] == ["episodes", "index"]
    assert "40/100  10.0/s  0:06 left" in drawn()[1]
    assert "0/64" in drawn()[0]
    terminal.work("index", 100, 100)
    assert [line.split()[0] for line in drawn()] == ["episodes"]
    terminal.ended(None)


def test_work_before_a_run_is_shown_unless_the_caller_reports_it_himself(monkeypatch: pytest.MonkeyPatch):
    for reporters, told in ((None, "index 30/90  10.0/s  0:06 left\n"), ([], "")):
        now = 0.0
        console, out = plain()
        made = partial(Terminal, console=console, clock=lambda: now)  # noqa: B023
        monkeypatch.setattr(reporting, "Terminal", made)
        with reporting.preparing(reporters):
            report_work("index", 0, 90)
            now = 3.0
            report_work("index", 30, 90)
        report_work("index", 60, 90)
        assert out.getvalue() == told


def test_a_command_shows_work_on_standard_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    now = 0.0
    monkeypatch.setattr(Terminal.__init__, "__kwdefaults__", {**Terminal.__init__.__kwdefaults__, "clock": lambda: now})
    with progress():
        report_work("base: packages", 0, 0)
        for now in (1.0, 3.0, 4.0, 14.0):
            report_work("base: packages", int(now), 0)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "base: packages 3  1.0/s\nbase: packages 14  1.0/s\n")
