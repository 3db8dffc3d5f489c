import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.rollouts.specs import EpisodeSpec, missing
from agentrl.store import RunDir, check
from agentrl.store.reader import RunReader
from agentrl.store.shards import Shards
from agentrl.types.errors import StoreError
from tests.store.make import make_episode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


def shards_of(path: Path) -> list[Path]:
    return sorted((path / "episodes").glob("*.jsonl.zst"))


def test_what_is_added_comes_back(path):
    episodes = [make_episode(f"e{i}", iteration=i % 2, branch=i % 3 == 0) for i in range(20)]
    with RunDir.create(path, {"recipe": {"name": "shop"}, "seed": 7}) as run:
        for episode in episodes:
            run.add(episode)
        assert run.get("e3") == episodes[3]
        assert run.ids(iteration=1) == {f"e{i}" for i in range(1, 20, 2)}
    with RunDir.read(path) as run:
        assert list(run.episodes()) == episodes
        assert [e.id for e in run.episodes(["e7", "e2"])] == ["e7", "e2"]
        assert [e.id for e in run.episodes(iteration=0)] == [f"e{i}" for i in range(0, 20, 2)]
        assert run.info["recipe"] == {"name": "shop"}
        assert run.info["seed"] == 7
        assert "python" in run.info["versions"]
    assert check(path).ok


@pytest.mark.slow
def test_shards_are_plain_zstd_json_lines(path):
    with RunDir.create(path) as run:
        for i in range(5):
            run.add(make_episode(f"e{i}"))
    text = subprocess.run(["zstdcat", *shards_of(path)], capture_output=True, check=True).stdout
    assert [json.loads(line)["id"] for line in text.splitlines()] == [f"e{i}" for i in range(5)]


def test_rows_filter_and_sort(path):
    with RunDir.create(path) as run:
        for i, reward in enumerate([0.5, None, 1.0, 0.0]):
            run.add(make_episode(f"e{i}", reward=reward, group=f"g{i % 2}"))
        run.add(make_episode("bad", status="infra_error"))
        best = run.rows(order="reward", descending=True)
        assert [row.id for row in best] == ["e2", "e0", "e3", "bad", "e1"]
        assert [row.id for row in run.rows(min_reward=0.5, order="id")] == ["e0", "e2"]
        assert [row.error for row in run.rows(status="infra_error")] == ["SandboxLost"]
        assert len(run.rows(group_id="g1", limit=1)) == 1
        with pytest.raises(StoreError, match="sort by one of: id"):
            run.rows(order="id; DROP TABLE episodes")


def test_an_id_is_stored_once_even_across_sessions(path):
    with RunDir.create(path) as run:
        run.add(make_episode("e"))
        with pytest.raises(StoreError, match="stored already"):
            run.add(make_episode("e"))
    with RunDir.open(path) as run:
        with pytest.raises(StoreError, match="stored already"):
            run.add(make_episode("e"))
        assert run.ids() == {"e"}


def test_every_session_writes_its_own_shard_and_large_ones_roll_over(path):
    for session in range(2):
        with RunDir.create(path) if session == 0 else RunDir.open(path) as run:
            run._episodes.roll_bytes = 4000
            for i in range(6):
                run.add(make_episode(f"{session}-{i}"))
    with RunDir.open(path) as run:  # adds nothing: no empty shard
        assert len(run.ids()) == 12
    assert len(shards_of(path)) > 2
    assert all(shard.stat().st_size for shard in shards_of(path))


def test_metrics_failures_and_credit(path):
    with RunDir.create(path) as run:
        run.add(make_episode("e", turns=2))
        run.add_metrics({"iteration": 0, "loss": np.float32(0.5), "nan": float("nan")})
        run.add_failure({"kind": "SandboxLost", "episode_id": "x"})
        run.add_credit("e", "grpo", np.array([1.0, 1.0]))
        run.add_credit("e", "gigpo", [0.5, -0.5], {"episode": [0.0, 0.0], "step": [0.5, -0.5]}, iteration=3)
    with RunDir.open(path) as run:
        credit = run.credit("e")
        assert credit is not None
        assert (credit.estimator, credit.turn_advantages, credit.iteration) == ("gigpo", [0.5, -0.5], 3)
        assert run.credit("other") is None
        assert run.metrics() == [{"iteration": 0, "loss": 0.5, "nan": None}]
        assert run.failures()[0]["kind"] == "SandboxLost"
        run.add_credit("e", "grpo", [0.0, 0.0])
    (path / "index.sqlite").unlink()
    with RunDir.open(path) as run:  # the last one counts, also in a rebuilt index
        assert run.credit("e").estimator == "grpo"


@pytest.mark.parametrize("change", [{"reward": float("nan")}, {"components": {"a": float("inf")}}])
def test_numbers_that_json_cannot_hold_are_refused(path, change):
    with RunDir.create(path) as run, pytest.raises(StoreError, match="NaN or infinite"):
        run.add(make_episode("e", **change))
    with RunDir.open(path) as run:
        assert run.ids() == set()
        with pytest.raises(StoreError, match="not finite"):
            run.add_credit("e", "grpo", [float("nan")])


def test_text_with_lone_surrogates_is_stored(path):
    with RunDir.create(path) as run:
        run.add(make_episode("e", answer="caf\udce9"))
    with RunDir.read(path) as run:
        assert run.get("e").answer == "caf?"


@pytest.mark.parametrize("found", [1, 3, None, "2"])
def test_a_run_of_another_format_is_refused(path, found):
    RunDir.create(path).close()
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**info, "format": found, "versions": {"agentrl": "9.9"}}))
    for opens in (RunDir.open, RunDir.read):
        with pytest.raises(StoreError, match=f"format {found!r}, and this version of agentrl reads 2") as refused:
            opens(path)
        assert refused.value.remedy == "read it with agentrl 9.9"


def test_folders_that_are_not_runs(path, tmp_path):
    with pytest.raises(StoreError, match="not a run directory"):
        RunDir.open(tmp_path)
    with pytest.raises(StoreError, match="no such folder"):
        RunDir.read(tmp_path / "nothing")
    RunDir.create(path).close()
    with pytest.raises(StoreError, match="resume it"):
        RunDir.create(path)


def test_ids_resolve_by_a_part(path):
    with RunDir.create(path) as run:
        for id in ("train/0/a%", "train/0/b", "eval/0/c", "a%"):
            run.add(make_episode(id))
        assert run.resolve("a%") == "a%"
        assert run.resolve("/a%") == "train/0/a%"
        assert run.resolve("eval") == "eval/0/c"
        assert run.resolve("l/0") == "eval/0/c"
        with pytest.raises(StoreError, match="fits 2"):
            run.resolve("train")
        with pytest.raises(StoreError, match="no episode"):
            run.resolve("a_")
        with pytest.raises(StoreError, match="no episode"):
            run.get("nothing")


def test_one_writer(path):
    run = RunDir.create(path)
    with pytest.raises(StoreError, match=f"written by process {os.getpid()}"):
        RunDir.open(path)
    run.close()
    RunDir.open(path).close()


def test_a_reader_sees_what_the_writer_has_not_indexed_yet(path):
    writer = RunDir.create(path)
    writer.add(make_episode("a"))
    writer.add_credit("a", "grpo", [0.0] * 4)
    reader = RunDir.read(path)
    assert reader.ids() == {"a"}
    writer.add(make_episode("b"))
    assert reader.ids() == {"a"}
    reader.refresh()
    assert reader.ids() == {"a", "b"}
    writer.flush()
    assert reader.ids() == {"a", "b"}  # now in the file and in the reader's memory, still counted once
    assert len(reader.rows()) == 2
    assert reader.credit("a").estimator == "grpo"
    writer.close()
    with pytest.raises(StoreError, match="not open for writing"):
        writer.add(make_episode("c"))


def test_a_reader_cannot_write_by_type(path):
    RunDir.create(path).close()
    with RunDir.read(path) as reader:
        assert isinstance(reader, RunReader)
        assert not isinstance(reader, RunDir)
        assert not {"add", "add_metrics", "put_blob", "update_info", "begin_again", "flush"} & set(dir(reader))


def test_threads_may_share_a_run(path):
    with RunDir.create(path) as run:
        batches = [[make_episode(f"{n}-{i}") for i in range(20)] for n in range(4)]
        threads = [threading.Thread(target=lambda b=batch: [run.add(e) for e in b]) for batch in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(run.ids()) == 80
    assert check(path).ok


def test_threads_may_read_a_run(path):
    """One decompressor for all of them ended the process."""
    with RunDir.create(path) as run:
        stored = [make_episode(f"e{i}", answer=random.Random(i).randbytes(50_000).hex()) for i in range(8)]
        for episode in stored:
            run.add(episode)
        run.flush()

        def read(seed):
            some = random.Random(seed).choices(stored, k=150)
            return [episode.id for episode in some if run.get(episode.id).answer != episode.answer]

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(read, range(3))) == [[], [], []]


def test_what_is_missing_is_asked_by_id(path, monkeypatch):
    """Every collection read every row of the run: two seconds at 200,000 episodes, on the event loop."""
    specs = [EpisodeSpec(f"g{k}#0", f"g{k}", make_episode("e").task) for k in range(1200)]
    with RunDir.create(path) as run:
        assert missing(specs, run) == specs
        for k in range(1000):
            run.add(make_episode(f"g{k}#0", turns=1, status="done" if k > 1 else "user_error"))
        run.add(make_episode("g0#0~1", turns=1, status="infra_error"))
        run.add(make_episode("g0#0~2", turns=1))
        monkeypatch.delattr(RunReader, "rows")
        monkeypatch.delattr(RunReader, "ids")
        assert [spec.id for spec in missing(specs, run)] == ["g1#0~1", *(f"g{k}#0" for k in range(1000, 1200))]
        assert run.values("status", ["g0#0~1", "g2#0", "nothing"]) == {"g0#0~1": "infra_error", "g2#0": "done"}
        assert run.values("status", []) == {}


async def test_add_may_run_off_the_event_loop(path):
    with RunDir.create(path) as run:
        await asyncio.gather(*(asyncio.to_thread(run.add, make_episode(f"e{i}")) for i in range(10)))
        assert len(run.ids()) == 10


# -- damage


@pytest.mark.parametrize("content", [None, b"", b"not a database at all, but long enough to be read as one" * 40])
def test_a_lost_index_is_rebuilt(path, content):
    with RunDir.create(path) as run:
        for i in range(8):
            run.add(make_episode(f"e{i}"))
        before = run.rows()
    (path / "index.sqlite").unlink()
    if content is not None:
        (path / "index.sqlite").write_bytes(content)
    with RunDir.read(path) as run:  # a reader does so in memory
        assert run.rows() == before
    with RunDir.open(path) as run:
        assert run.rows() == before
    assert check(path).ok


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_shard_cut_anywhere_loses_only_what_was_cut(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("cut") / "run"
    with RunDir.create(path) as run:
        for i in range(5):
            run.add(make_episode(f"e{i}", turns=1))
        ends = [row.offset + row.length for row in run.rows(order="offset")]
    shard = shards_of(path)[0]
    size = data.draw(st.integers(1, ends[-1]))
    os.truncate(shard, size)
    if data.draw(st.booleans()):
        (path / "index.sqlite").unlink()
    whole = sum(end <= size for end in ends)
    with RunDir.open(path) as run:
        assert run.ids() == {f"e{i}" for i in range(whole)}
        assert len(list(run.episodes())) == whole
        torn = [repair for repair in run.repairs() if repair["kind"] == "torn"]
        assert len(torn) == (size not in (0, *ends))
        run.add(make_episode("after"))
    report = check(path)
    assert report.ok, report.as_text()
    assert not any("torn last record:" in note for note in report.notes), "it was cut off, not only passed over"


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_costs_one_record(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flip") / "run"
    with RunDir.create(path) as run:
        for i in range(5):
            run.add(make_episode(f"e{i}", turns=1))
        rows = run.rows(order="offset")
    shard = shards_of(path)[0]
    victim = rows[data.draw(st.integers(0, 3))]
    content = bytearray(shard.read_bytes())
    content[victim.offset + data.draw(st.integers(0, victim.length - 1))] ^= 1 << data.draw(st.integers(0, 7))
    shard.write_bytes(content)
    others = {row.id for row in rows} - {victim.id}
    with RunDir.read(path) as run:
        damaged: list[StoreError] = []
        found = {episode.id: episode for episode in run.episodes(damaged=damaged)}
        if victim.id in found:  # a few bits of a frame's header mean nothing
            assert found[victim.id] == make_episode(victim.id, turns=1)
            return
        assert set(found) == others
        assert [f"{shard.name}@{victim.offset}:" in str(error) for error in damaged] == [True]
        with pytest.raises(StoreError, match="cannot be read"):
            run.get(victim.id)
    assert not check(path).ok
    (path / "index.sqlite").unlink()
    with RunDir.open(path) as run:
        assert run.ids() == others
        assert run.damage == [f"episodes/{shard.name}@{victim.offset}"]
        assert run.repairs()[0]["kind"] == "damaged"


def test_a_torn_metrics_line_is_dropped(path):
    with RunDir.create(path) as run:
        run.add_metrics({"iteration": 0})
    with open(path / "metrics.jsonl", "ab") as file:
        file.write(b'{"iteration": 1, "lo')
    with RunDir.open(path) as run:
        run.add_metrics({"iteration": 1})
        assert [line["iteration"] for line in run.metrics()] == [0, 1]
        assert run.repairs()[0]["kind"] == "torn_line"


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_reported(path):
    program = textwrap.dedent(
        """
        import sys
        from agentrl.store import RunDir
        from tests.store.make import make_episode
        path, session = sys.argv[1:]
        run = RunDir.create(path) if session == "0" else RunDir.open(path)
        print("open", flush=True)
        i = 0
        while True:
            sha = run.put_blob(f"{session}-{i}".encode())
            run.add(make_episode(f"{session}-{i}", turns=2, blob=sha))
            run.add_credit(f"{session}-{i}", "grpo", [0.0, 0.0])
            print(f"{session}-{i}", flush=True)
            i += 1
        """
    )
    reported: set[str] = set()
    for session in range(4):
        command = [sys.executable, "-c", program, str(path), str(session)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        for _ in range(40 + 31 * session):
            reported.add(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
        reported |= {line.strip() for line in process.stdout if line.endswith("\n")}
        process.wait()
        assert {row.id for row in RunDir.read(path).rows()} >= reported
    with RunDir.open(path) as run:
        assert run.ids() >= reported
        assert len(run.ids()) <= len(reported) + 4
    report = check(path)
    assert report.ok, report.as_text()


def test_a_full_disk_leaves_no_half_record(path, monkeypatch):
    with RunDir.create(path) as run:
        run.add(make_episode("a"))
        real = os.write

        def half(fd: int, data: bytes) -> int:
            if len(data) > 100:
                return real(fd, bytes(data)[:100])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, data: half(fd, data[:100] if len(data) > 200 else data[:0]))
            with pytest.raises(StoreError, match="No space left"):
                run.add(make_episode("b"))
        run.add(make_episode("c"))
    with RunDir.open(path) as run:
        assert run.ids() == {"a", "c"}
    assert check(path).ok


def test_size_is_linear_in_tokens(path):
    sizes = {}
    for turns in (20, 200):
        run_path = path.with_name(f"run{turns}")
        with RunDir.create(run_path) as run:
            run.add(make_episode("e", turns=turns))
        sizes[turns] = shards_of(run_path)[0].stat().st_size
    assert sizes[200] < 11 * sizes[20]


def test_scan_takes_start_offsets(tmp_path):
    shards = Shards(tmp_path / "s")
    places = [shards.append(b"%d" % i) for i in range(4)]
    shards.close()
    found = list(shards.scan({places[2].shard: places[2].offset}))
    assert [frame.data for frame in found] == [b"2", b"3"]
    assert msgspec.json.encode(found[0].location)


def test_a_folder_of_runs_is_told_from_a_run(tmp_path: Path) -> None:
    RunDir.create(tmp_path / "checked" / "a" / "oracle").close()
    for folder in (tmp_path / "checked", tmp_path / "checked" / "a"):
        with pytest.raises(StoreError, match="this is not a run directory") as raised:
            RunDir.read(folder)
        assert str(tmp_path / "checked" / "a" / "oracle") in (raised.value.remedy or "")
