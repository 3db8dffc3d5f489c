import io

from rich.console import Console

from agentrl.view.progress import RolloutProgress, TrainProgress, sparkline
from tests.store.make import make_episode


def plain() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200), out


def test_a_rollout_without_a_terminal_prints_lines():
    console, out = plain()
    with RolloutProgress(5, done=2, console=console) as progress:
        progress.note("resumed: 2 are stored")
        for i, reward in enumerate([1.0, 0.0, None]):
            progress.phase(f"e{i}", "generate")
            progress.episode(make_episode(f"e{i}", reward=reward, status="done" if i < 2 else "infra_error"))
    assert "\x1b" not in out.getvalue()
    lines = out.getvalue().splitlines()
    assert lines[0] == "resumed: 2 are stored"
    assert lines[-1].startswith("5/5 episodes")
    assert "reward 0.500" in lines[-1], "what was never scored is not in the mean"
    assert "done=2 infra_error=1" in lines[-1]


def test_episodes_in_flight_are_counted_by_phase():
    console, _ = plain()
    progress = RolloutProgress(3, console=console)
    progress.phase("a", "sandbox")
    progress.phase("b", "generate")
    progress.phase("a", "generate")
    with console.capture() as capture:
        console.print(progress.render())
    assert "in flight generate 2" in capture.get()
    progress.phase("a", None)
    progress.episode(make_episode("b"))
    with console.capture() as capture:
        console.print(progress.render())
    assert "in flight" not in capture.get()


def test_training_prints_a_line_per_iteration():
    console, out = plain()
    with TrainProgress(3, console=console) as progress:
        progress.episode(make_episode("e"))
        for i in range(3):
            progress.iteration({"iteration": i + 1, "success": i / 2, "loss": 1e-5, "other": "x"})
        progress.note("saved checkpoints/3")
    assert out.getvalue().splitlines() == [
        "iteration 1/3  success 0.000  loss 1e-05",
        "iteration 2/3  success 0.500  loss 1e-05",
        "iteration 3/3  success 1.000  loss 1e-05",
        "saved checkpoints/3",
    ]


def test_in_a_terminal_there_is_a_table_and_a_curve():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with TrainProgress(3, console=console) as progress:
        for i in range(3):
            progress.iteration({"iteration": i + 1, "reward": i / 2, "turns": 4.0})
    assert "▁▅█" in out.getvalue()
    with RolloutProgress(1, console=console) as rollout:
        rollout.episode(make_episode("e", reward=1.0))
    assert "1/1 episodes" in out.getvalue()


def test_a_sparkline():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert sparkline([]) == ""
    assert len(sparkline([float(i) for i in range(1000)], width=40)) == 40
