"""The list of runs, and their curves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from agentrl.store import RunDir
from agentrl.view.web.endpoints import answer
from agentrl.view.web.library import RunLibrary
from agentrl.view.web.overview import thinned
from agentrl.view.web.query import Query
from tests.view.web.test_server import make_run


def test_a_run_that_is_deleted_while_runs_are_listed_is_shown_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "runs" / "whole", groups=1)
    (tmp_path / "runs" / "folder" / "run.json").mkdir(parents=True)  # no run: only a folder of this name
    library = RunLibrary(tmp_path / "runs", cache=tmp_path / "cache", builds=False)
    assert library.keys() == ["whole"]
    monkeypatch.setattr(library, "keys", lambda: ["odd", "whole"])
    runs = {run["key"]: run for run in answer(library, "runs", Query({}))["runs"]}
    problem = runs["odd"]["problem"]
    assert (problem["what"], problem["place"]) == ("there is no run 'odd'", str(tmp_path / "runs"))
    assert (runs["odd"]["path"], runs["odd"]["episodes"]) == (str(tmp_path / "runs" / "odd"), None)
    assert (runs["whole"]["problem"], runs["whole"]["episodes"]) == (None, 4)


def test_the_curves_of_one_stage_can_be_asked_for(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        run.add_metrics({"stage": "warm_start", "split": "sft", "iteration": 10, "loss": 2.0})
        run.add_metrics({"stage": "learn", "split": "train", "iteration": 1, "success": 0.5, "loss": 1.0})
    library = RunLibrary(tmp_path / "run", cache=tmp_path / "cache", builds=False)
    every = answer(library, "metrics", Query({"run": "run"}))
    one = answer(library, "metrics", Query({"run": "run", "stage": "learn"}))
    assert set(every["series"]) == {"warm_start/loss", "learn/success", "learn/loss"}
    assert one["series"] == {"learn/success": [(1.0, 0.5)], "learn/loss": [(1.0, 1.0)]}
    assert one["screen"] == {"learn: success": ["learn/success"], "learn: loss": ["learn/loss"]}
    library.close()


def test_a_long_curve_is_sent_with_its_ends_and_its_extremes() -> None:
    curve = [(float(k), math.sin(k / 50)) for k in range(10_000)]
    curve[4321], curve[8765] = (4321.0, 7.0), (8765.0, -7.0)  # one spike up, one down
    thin = thinned(curve, 100)
    assert 50 <= len(thin) <= 110
    assert (thin[0], thin[-1]) == (curve[0], curve[-1])
    assert {(4321.0, 7.0), (8765.0, -7.0)} <= set(thin)
    assert thin == sorted(set(thin))
    assert set(thin) <= set(curve)
    assert thinned(curve[:100], 100) == curve[:100]
