import io

import pytest
from rich.console import Console

from agentrl.reporters.terminal import Terminal
from agentrl.rollouts.summary import summary
from agentrl.types.errors import StoreError
from agentrl.view.curves import learning_curve
from agentrl.view.summary import series
from tests.store.make import make_episode


@pytest.mark.slow
def test_a_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'agentrl-framework[train]'")
    metrics = [{"iteration": i, "success": i / 9, "reward": i / 10, "turns": 5, "loss": 0.1} for i in range(10)]
    metrics += [{"iteration": 5, "split": "eval", "success": 0.4}]
    learning_curve(metrics, tmp_path / "curve.png", "house")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    learning_curve(metrics[:1], tmp_path / "one.png", "house")


@pytest.mark.slow
def test_an_evaluation_of_which_nothing_was_scored_plots_nothing(tmp_path):
    """An outage is no collapse."""
    failed = [make_episode(f"e{k}", status="infra_error") for k in range(3)]
    lost = {"iteration": 1, "split": "eval", **summary(failed)}
    assert (lost["failed"], lost["reward"], lost["success"], lost["turns"]) == (3, None, None, None)
    scored = {"iteration": 0, "split": "eval", **summary([*failed, make_episode("e", reward=1.0)])}
    assert series([scored, lost])["eval/success"] == [(0.0, 1.0)]
    progress = Terminal(console=Console(file=io.StringIO(), width=120))
    progress.metrics(lost)
    assert "success" not in progress.console.file.getvalue()
    with pytest.raises(StoreError, match="neither a success nor a reward"):
        learning_curve([lost], tmp_path / "curve.png", "house")


def test_without_success_and_reward_there_is_nothing_to_draw(tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'agentrl-framework[train]'")
    with pytest.raises(StoreError, match="neither a success nor a reward"):
        learning_curve([{"iteration": 0, "loss": 1.0}], tmp_path / "curve.png", "house")
