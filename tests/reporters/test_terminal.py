import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from agentrl.reporters.terminal import Terminal
from agentrl.types.reporter import RunStart
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
