"""Activity of a run, as its heartbeat tells it."""

from __future__ import annotations

from pathlib import Path

from agentrl.store import RunDir
from agentrl.store.heartbeat import Pulse, write_pulse
from agentrl.view.live import STALE_S, activity


def test_a_process_without_a_heartbeat_is_told_as_suspended_or_busy(tmp_path: Path) -> None:
    """The lock is held, so the process lives, but it wrote nothing for a while."""
    at = 1_790_000_000.0
    with RunDir.create(tmp_path / "run") as run:
        write_pulse(run.path, Pulse(at=at, pid=4711, started=at - 60, phase="iteration 3", phase_since=at - 20, done=2))
        silent, alive = activity(run, at + 75), activity(run, at + STALE_S)
    assert silent.working
    assert silent.state == "no heartbeat for 1:15: process 4711 is suspended, or very busy"
    assert alive.state == "iteration 3  2  6.0/min"
