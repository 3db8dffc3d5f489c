import pytest

from agentrl.errors import StoreError
from agentrl.view.curves import learning_curve


def test_a_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'agentrl[train]'")
    metrics = [{"iteration": i, "success": i / 9, "reward": i / 10, "turns": 5, "loss": 0.1} for i in range(10)]
    metrics += [{"iteration": 5, "split": "eval", "success": 0.4}]
    learning_curve(metrics, tmp_path / "curve.png", "house")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    learning_curve(metrics[:1], tmp_path / "one.png", "house")


def test_without_success_and_reward_there_is_nothing_to_draw(tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'agentrl[train]'")
    with pytest.raises(StoreError, match="neither a success nor a reward"):
        learning_curve([{"iteration": 0, "loss": 1.0}], tmp_path / "curve.png", "house")
