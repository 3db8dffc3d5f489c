"""`benchmarks.runner` on a few episodes: the floor and ours finish rightly, and what is stored is sound."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

pytest.importorskip("transformers", reason="pip install 'agentrl-framework[train]'")

from benchmarks import runner
from benchmarks.harness import Report

pytestmark = pytest.mark.slow


def test_the_arms_that_need_no_peer_play_and_what_is_stored_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    real = runner.check_run
    monkeypatch.setattr(runner, "check_run", lambda out: (real(out), checked.append(out)))
    tiny = runner.Scenario("50 ms", episodes=6, turns=3, concurrency=3, latency_s=0.01)
    said: list[str] = []
    report = Report("runner", write=said.append)
    rows = runner.measure([tiny], ["bare aiohttp", "agentrl"], 1, Console(file=io.StringIO()), report)
    assert (report.missing, report.problems) == ({}, [])
    assert [arm for _, arm in rows] == ["bare aiohttp", "agentrl"]
    assert len(checked) == 1
    assert all(row.right == 6 and row.cpu_ms_turn > 0 for row in rows.values())
    runner.compare(rows, report)
    assert [(ratio.ours, ratio.other) for ratio in report.ratios] == [("agentrl", "bare aiohttp")]
    promised = [line for line in said if "at most" in line]
    assert [line.partition(", 50 ms")[0] for line in promised] == ["runner: CPU of a turn", "runner: seconds"]
