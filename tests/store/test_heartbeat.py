"""The heartbeat of a run, as it is written and read."""

from __future__ import annotations

from pathlib import Path

from agentrl.store.heartbeat import NAME, Flight, Pulse, read_pulse, write_pulse
from agentrl.store.run_dir import RunDir


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run") as run:
        assert read_pulse(run.path) is None
        pulse = Pulse(at=2.0, pid=7, started=1.0, episodes={"a": Flight(stage="tools", since=1.5, turns=3)})
        write_pulse(run.path, pulse)
        assert read_pulse(run.path) == pulse
    assert read_pulse(tmp_path / "run") == pulse


def test_what_cannot_be_read_is_not_recorded(tmp_path: Path) -> None:
    for text in ("", "{", '{"at": 1.0}', '{"at": 1.0, "pid": 7, "started": 1.0, "format": 99}'):
        (tmp_path / NAME).write_text(text)
        assert read_pulse(tmp_path) is None
