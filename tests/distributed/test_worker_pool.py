"""Episodes played by workers: the same ones, each stored once, whatever dies."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from agentrl.api.recipes import given_recipe
from agentrl.api.rollout import rollout
from agentrl.api.train import train as train_recipe
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.distributed.worker_pool import WorkersGone, open_runners
from agentrl.engines.vllm.engine import VLLMEngine
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.rollouts.builder import build
from agentrl.rollouts.collector import Collector
from agentrl.rollouts.scheduler import RolloutScheduler
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError
from agentrl.types.reporter import Reporter
from agentrl.types.task import Task
from tests.command import Started
from tests.counting import metrics
from tests.rollouts.test_failures_over_http import Server
from tests.rollouts.world import make_parts, specs
from tests.sound import assert_sound
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.family("distributed")]

TWO_PROCESSES = ("scale.use=process", "scale.rollout_workers=2")


def contents(run: Path) -> dict[str, Episode]:
    """All that does not depend on when and where an episode was played."""
    with RunDir.read(run) as reader:
        return {episode.id: timeless(episode) for episode in reader.episodes()}


def timeless(episode: Episode) -> Episode:
    turns = []
    for turn in episode.turns:
        calls = [msgspec.structs.replace(call, duration_s=0.0) for call in turn.calls]
        nothing = {"generate_s": 0.0, "tools_s": 0.0, "queue_s": None, "decode_s": None}
        turns.append(msgspec.structs.replace(turn, calls=calls, **nothing))
    return msgspec.structs.replace(episode, timings={}, created_at=0.0, turns=turns)


def play(counting: Path, out: str, n: int, *overrides: str, script: str = "oracle") -> Path:
    """`agentrl rollout`; the run directory."""
    path = counting.parent / out
    return rollout(counting, n, overrides=overrides, script=script, out=path).path


def test_workers_play_what_the_driver_would(counting: Path) -> None:
    alone = contents(play(counting, "alone", 24, script="hasty"))
    for backend in ("local", "process"):
        run = play(counting, backend, 24, f"scale.use={backend}", "scale.rollout_workers=2", script="hasty")
        assert contents(run) == alone
        assert_sound(run)


def test_a_workers_death_costs_no_episode_and_doubles_none(counting: Path) -> None:
    deadly = "tools=[{use: ./task.py:Deadly, tasks: [count5, count20], delay: 0.02}]"
    path = play(counting, "run", 40, *TWO_PROCESSES, deadly)
    with RunDir.read(path) as run:
        rows, failures = run.rows(), run.failures()
        attempts = {episode.task.id: episode.attempt for episode in run.episodes()}
    assert len(rows) == 40
    assert {(row.status, row.reward) for row in rows} == {("done", 1.0)}
    assert {failure["kind"] for failure in failures} == {"WorkerDied"}
    assert "was killed by SIGKILL" in failures[0]["message"]
    assert attempts["count5"] > 0
    assert sum(attempts.values()) == len(failures)
    assert_sound(path)


def test_an_episode_that_kills_every_worker_is_given_up_and_takes_none_along(counting: Path) -> None:
    # Many share the worker with it, twice perhaps: the last attempt of each is played by a worker of its own.
    deadly = "tools=[{use: ./task.py:Deadly, tasks: [count0], times: 9, delay: 0.02}]"
    path = play(counting, "run", 40, *TWO_PROCESSES, deadly, "concurrency=40")
    with RunDir.read(path) as run:
        status = {row.id.split("-")[-1]: (row.status, row.reward) for row in run.rows()}
        finals = [failure["episode"] for failure in run.failures() if failure["final"]]
        shared = {failure["episode"] for failure in run.failures()}
    assert status.pop("count0#0") == ("infra_error", None)
    assert list(status.values()) == [("done", 1.0)] * 39
    assert [final.split("-")[-1] for final in finals] == ["count0#0"]
    assert len(shared) > 1, "others were on the workers that died"
    assert_sound(path)


def test_when_no_worker_is_left_the_run_stops_and_goes_on_later(counting: Path) -> None:
    deadly = ("tools=[{use: ./task.py:Deadly, tasks: [count4], times: 2}]", "concurrency=1")
    with pytest.raises(WorkersGone, match=r"all 2 workers died, .*SIGKILL"):
        play(counting, "run", 8, *TWO_PROCESSES, *deadly, "scale.restarts=0")
    path = play(counting, "run", 8, *TWO_PROCESSES, *deadly)
    with RunDir.read(path) as run:
        assert [(row.status, row.reward) for row in run.rows()] == [("done", 1.0)] * 8
    assert_sound(path)


def test_long_outputs_come_along(counting: Path) -> None:
    path = play(counting, "run", 6, *TWO_PROCESSES, "tools=[./task.py:Flood]", script="flooding")
    with RunDir.read(path) as run:
        blobs = [turn.calls[0].blob for episode in run.episodes() for turn in episode.turns[:1]]
        assert {run.get_blob(sha) for sha in blobs if sha is not None} == {b"Flood" * 10_000}
    assert_sound(path)


@pytest.mark.parametrize("launcher", ["local", "process"])
async def test_what_computes_in_a_workers_loop_is_counted_in_the_run(counting: Path, launcher: str) -> None:
    ours = ["tools=[./task.py:Computes]", f"scale.use={launcher}", "scale.rollout_workers=1"]
    parts = build(given_recipe(counting, ours))
    engine, renderer = parts.scripted_engine("oracle", ByteTokenizer())
    async with open_runners(parts) as runners:
        with RunDir.create(counting.parent / "run") as run:
            collector = Collector(parts, run, Reporter(), runners)
            async with collector.scheduler(engine, renderer) as scheduler:
                tasks = [Task.of(f"count{k}", "Count to 1.", to=1) for k in range(3)]
                await scheduler.play_all([EpisodeSpec(f"g{k}#0", f"g{k}", task) for k, task in enumerate(tasks)])
                found = scheduler.utilization()
    assert found["loop_stalls"] >= 1
    assert found["loop_stall_s"] >= 0.4


def test_a_recipe_that_cannot_be_built_there_says_so(counting: Path) -> None:
    code = counting / "task.py"
    code.write_text(f"{code.read_text()}\nif os.getpid() != {os.getpid()}: raise OSError('no GPU')\n")
    with pytest.raises(RecipeError, match="cannot be imported: OSError: no GPU"):
        play(counting, "run", 4, *TWO_PROCESSES)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_workers_end_with_their_driver(counting: Path) -> None:
    here = counting.parent
    sets = [*TWO_PROCESSES, "tools=[./task.py:Stuck]"]
    driver = Started(
        "-m", "agentrl.cli", "rollout", "counting", "--script", "oracle", "--out", "run",
        *(part for text in sets for part in ("--set", text)), cwd=here,
    )  # fmt: skip
    shards = here / "run" / "episodes"
    until(lambda: shards.is_dir() and any(file.stat().st_size for file in shards.iterdir()))
    until(lambda: len(children(driver.pid)) == 2)
    workers = children(driver.pid)
    driver.kill()
    driver.wait()
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def test_training_with_workers_is_training_without(trainable: Path) -> None:
    """The embedded engine stays with the trainer; workers reach it through the gateway."""
    here, name = trainable.parent, str(trainable)
    train_recipe(name, overrides=["train.iterations=2"], out=here / "alone")
    train_recipe(name, overrides=["train.iterations=2", "scale.rollout_workers=2"], out=here / "workers")
    assert metrics(here / "workers") == metrics(here / "alone")
    assert_sound(here / "workers")


def test_the_staleness_bound_holds_with_workers(trainable: Path) -> None:
    here = trainable.parent
    stale = ["train.max_staleness=1", "train.importance={high: 2}", "train.iterations=3"]
    delay = "tools=[{use: ./task.py:Counter, delay: 0.02}]"
    train_recipe(str(trainable), overrides=[*stale, delay, *TWO_PROCESSES], out=here / "run")
    with RunDir.read(here / "run") as run:
        lines = [line for line in run.metrics() if line["split"] == "train"]
        versions = {span.version for e in run.episodes(split="train") for node in e.nodes for span in node.versions}
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    assert max(line["staleness_max"] for line in lines) <= 1
    assert versions <= {0, 1, 2}
    assert len(versions) > 1, "new weights reach the engine that the workers ask"
    assert_sound(here / "run")


class CountingServer(Server):
    """Counts who asks what it serves."""

    greeted = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.greeted += request.path == "/v1/models"
        return await super().__call__(request)


async def test_servers_that_tell_versions_are_asked_directly(tmp_path: Path) -> None:
    server = CountingServer()
    async with AsyncExitStack() as stack:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", server.__call__)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls = [f"http://127.0.0.1:{runner.addresses[0][1]}"]
        parts = make_parts(tmp_path, engine={"use": "vllm", "urls": urls}, scale={"rollout_workers": 2})
        engine = VLLMEngine(VLLMSettings(urls=urls), urls, tokenizer=ByteTokenizer(), room=10)
        stack.push_async_callback(engine.close)
        await engine.start()
        runners = await stack.enter_async_context(open_runners(parts))
        runner = runners.for_context(parts.context(engine, parts.renderer(ByteTokenizer()), runners.backend))
        episodes: list[Episode] = []
        scheduler = RolloutScheduler(runner, concurrency=4, limits=parts.recipe.limits, store=episodes.append)
        await scheduler.play_all(specs(8))
    assert {(episode.status, episode.answer) for episode in episodes} == {("done", "y")}
    assert server.greeted == 3, "the driver, and each worker"
