"""`agentrl.open_run`: a run as tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.api.run import Run, open_run
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import MissingExtra, StoreError
from tests.store.make import make_episode


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    with RunDir.create(tmp_path / "run", {"command": "rollout"}) as run:
        run.add(make_episode("e1", turns=2, reward=1.0, created_at=1.0))
        run.add(make_episode("e2", turns=3, reward=0.0, split="eval", created_at=2.0))
        run.add(make_episode("e3", turns=0, reward=None, status="infra_error", created_at=3.0))
        run.add_credit("e1", "grpo", [0.5, -0.5])
        run.add_metrics({"iteration": 1, "split": "train", "loss": 0.5, "staleness": {"0": 1.0}})
        run.add_metrics({"iteration": 1, "split": "eval", "success": None, "groups": ["a", "b"]})
    return tmp_path / "run"


def test_the_tables_of_a_run(stored: Path) -> None:
    run = Run(stored)
    assert [(row.id, row.split, row.reward, row.turns) for row in run.episodes] == [
        ("e1", "train", 1.0, 2), ("e2", "eval", 0.0, 3), ("e3", "train", None, 0),
    ]  # fmt: skip
    assert {"shard", "offset", "length"}.isdisjoint(run.episodes.columns)
    turns = run.turns
    assert [(turn.episode, turn.index, turn.advantage) for turn in turns] == [
        ("e1", 0, 0.5), ("e1", 1, -0.5), ("e2", 0, None), ("e2", 1, None), ("e2", 2, None),
    ]  # fmt: skip
    whole = run.episode("e1")
    assert turns[0].text == whole.turns[0].text
    assert sum(turn.sampled_tokens for turn in turns if turn.episode == "e1") == whole.sampled_tokens
    calls = [(call.episode, call.turn, call.name, call.arguments) for call in run.calls]
    expected = [
        (episode.id, turn.index, call.name, call.arguments)
        for episode in run.whole_episodes()
        for turn in episode.turns
        for call in turn.calls
    ]
    assert calls == expected
    assert calls
    assert {(row.component, row.value) for row in run.rewards if row.episode == "e1" and row.turn is None} == set(
        whole.components.items()
    )
    assert run.metrics[0]["loss"] == 0.5
    assert run.summary().episodes == 3
    assert run.credit("e1").turn_advantages == [0.5, -0.5]  # type: ignore[union-attr]
    assert repr(run.metrics) == "Table(2 rows: iteration, split, loss, staleness, success, groups)"


def test_a_run_that_is_being_written_is_seen_as_it_is(stored: Path) -> None:
    run = Run(stored)
    assert len(run.episodes) == 3
    with RunDir.open(stored) as writer:
        writer.add(make_episode("e4"))
        assert len(run.episodes) == 4
        assert run.episode("e4").id == "e4"
    with run:
        assert len(run.turns) == 5 + len(make_episode("e4").turns)
    assert len(run.episodes) == 4, "opened again"


def test_arrow_and_pandas_hold_the_same(stored: Path) -> None:
    run = Run(stored)
    for table in (run.episodes, run.turns, run.calls, run.rewards, run.metrics):
        arrow, frame = table.to_arrow(), table.to_pandas()
        assert arrow.num_rows == len(frame) == len(table)
        assert arrow.column_names == list(frame.columns) == table.columns
    assert str(run.episodes.to_arrow().schema.field("reward").type) == "double"
    assert run.episodes.to_arrow()["reward"].to_pylist() == [1.0, 0.0, None]
    assert str(run.calls.to_arrow().schema.field("arguments").type) == "string"
    assert run.metrics.to_arrow()["staleness"].to_pylist() == ['{"0": 1.0}', None]
    assert run.metrics.to_pandas()["loss"].isna().tolist() == [False, True]
    assert run.turns.to_dicts()[0]["text"] == run.turns[0].text
    assert run.turns.to_pandas().groupby("episode")["index"].count().to_dict() == {"e1": 2, "e2": 3}


def test_the_columns_do_not_depend_on_which_rows_there_are(stored: Path, tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "empty"):
        pass
    full, empty = Run(stored), Run(tmp_path / "empty")
    for name in ("episodes", "turns", "calls", "rewards"):
        assert getattr(empty, name).to_arrow().schema == getattr(full, name).to_arrow().schema
    assert empty.metrics.to_arrow().num_rows == 0
    assert empty.metrics.to_dicts() == []


@pytest.mark.parametrize(("package", "method"), [("pyarrow", "to_arrow"), ("pandas", "to_pandas")])
def test_a_missing_package_names_the_extra(
    stored: Path, package: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    command = r"pip install 'agentrl-framework\[tables\]'"
    with pytest.raises(MissingExtra, match=rf"{package} is not installed\n  -> {command}"):
        getattr(Run(stored).episodes, method)()


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no such folder"):
        open_run(tmp_path / "none")
