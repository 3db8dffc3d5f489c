"""The heartbeat that a run writes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.reporters import heartbeat
from agentrl.reporters.heartbeat import HeartbeatWriter
from agentrl.store.heartbeat import Pulse, read_pulse
from agentrl.types.reporter import Reporter, RunStart
from tests.counting import write
from tests.store.make import make_episode


class Counter:
    def __init__(self, value: Any) -> None:
        self.value = value

    def counts(self) -> Any:
        return self.value


def begun(path: Path, now: list[float]) -> HeartbeatWriter:
    writer = HeartbeatWriter(clock=lambda: now[0])
    writer.started(RunStart(path=path, id="1", name="house", command="train", recipe={}))
    return writer


def test_it_says_what_a_run_does(tmp_path: Path) -> None:
    now = [100.0]
    writer = begun(tmp_path, now)
    conversations = Counter({"a": ("tools", 2)})
    parts = {
        "conversations": conversations,
        "queue": Counter({"running": 2, "waiting": 5}),
        "sandboxes": Counter({"in_use": 1, "warm": 3}),
        "engine": Counter({"name": "torch", "running": 1}),
    }
    for kind, part in parts.items():
        writer.watch(kind, part.counts)
        writer.watch(kind, part.counts)  # a further round of the same parts
    writer.phase("iteration 1", 8)
    writer.episode(make_episode("done"))
    for id, stage in {"a": "agent", "b": "sandbox", "c": "agent"}.items():
        writer.episode_stage(id, stage)
    pulse = writer.pulse()
    assert (pulse.phase, pulse.done, pulse.total, pulse.running, pulse.waiting) == ("iteration 1", 1, 8, 2, 5)
    assert pulse.sandboxes == {"in_use": 1, "warm": 3}
    assert pulse.engines == [{"name": "torch", "running": 1}]
    assert {id: (each.stage, each.turns) for id, each in pulse.episodes.items()} == {
        "a": ("tools", 2),
        "b": ("sandbox", None),
        "c": ("agent", None),
    }
    now[0] = 107.0
    conversations.value = {"a": ("tools", 3)}
    writer.episode_stage("c", None)
    since = {id: each.since for id, each in writer.pulse().episodes.items()}
    assert since == {"a": 107.0, "b": 100.0}, "another turn is another stay"
    del parts, conversations, part
    gc.collect()
    assert (writer.pulse().engines, writer.pulse().sandboxes) == ([], None), "it keeps no part alive"
    writer.ended(None)


@pytest.mark.parametrize(
    ("error", "told"),
    [(None, "finished"), (KeyboardInterrupt(), "stopped"), (ValueError("no\nmore"), "ValueError: no")],
)
def test_its_end_is_marked(error: BaseException | None, told: str, tmp_path: Path) -> None:
    writer = begun(tmp_path, [1.0])
    assert (read := read_pulse(tmp_path)) is not None
    assert read.ended is None
    writer.episode_stage("a", "agent")
    writer.ended(error)
    assert (read := read_pulse(tmp_path)) is not None
    assert (read.ended, read.episodes) == (told, {})


def test_a_part_or_a_disk_that_fails_ends_no_run(tmp_path: Path) -> None:
    writer = begun(tmp_path / "deleted", [1.0])
    broken = Counter(object())
    writer.watch("engine", broken.counts)
    assert writer.pulse().engines == []
    writer.ended(None)
    assert not (tmp_path / "deleted").exists()


class Look(Reporter):
    """Looks at the heartbeat whenever an episode has ended."""

    def __init__(self, path: Path) -> None:
        self.path, self.seen = path, list[Pulse]()

    def started(self, run: RunStart) -> None:
        pulse = read_pulse(run.path)
        assert pulse is not None
        self.seen.append(pulse)


def test_a_rollout_leaves_one_that_says_it_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[HeartbeatWriter] = []

    class Kept(HeartbeatWriter):
        def __init__(self) -> None:
            super().__init__()
            writers.append(self)

    class Asked(Look):
        def episode(self, episode: Any) -> None:
            self.seen.append(writers[0].pulse())

    monkeypatch.setattr("agentrl.reporters.reporting.HeartbeatWriter", Kept)
    monkeypatch.chdir(tmp_path)
    look = Asked(tmp_path / "run")
    rollout(str(write(tmp_path / "counting")), 4, script="hasty", out="run", reporters=[look])
    first, *during = look.seen
    assert (first.phase, first.ended) == ("", None)
    assert {pulse.phase for pulse in during} == {"episodes"}
    assert during[0].engines == [{"name": "scripted"}]
    assert during[0].running + during[0].waiting > 0
    stages = {each.stage for pulse in during for each in pulse.episodes.values()}
    assert stages <= {"start", "open", "agent", "generate", "tools", "score", "close", "end"}
    assert (pulse := read_pulse(tmp_path / "run")) is not None
    assert (pulse.ended, pulse.done, pulse.total, pulse.episodes) == ("finished", 4, 4, {})


def test_it_is_written_at_most_once_a_second() -> None:
    assert heartbeat.EVERY_S >= 1.0
