"""Episodes played by workers: the same ones, each stored once, whatever dies."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.commands.train import train_into
from agentrl.engines.settings import EngineSettings
from agentrl.engines.vllm import VLLMEngine
from agentrl.episode.record import Episode
from agentrl.episode.runner import Runner
from agentrl.recipe_file import load_recipe
from agentrl.scale.crew import crewed
from agentrl.store.run_dir import RunDir
from tests.command import agentrl
from tests.commands.test_train import TRAINING, metrics
from tests.episode.test_failures_over_http import Server
from tests.episode.world import make_parts, plans

TWO_PROCESSES = ("--set", "scale.backend=process", "--set", "scale.rollout_workers=2")


def contents(run: Path) -> dict[str, Episode]:
    """All that does not depend on when and where an episode was played."""
    with RunDir.read(run) as reader:
        return {episode.id: timeless(episode) for episode in reader.episodes()}


def timeless(episode: Episode) -> Episode:
    turns = []
    for turn in episode.turns:
        calls = [msgspec.structs.replace(call, duration_s=0.0) for call in turn.calls]
        turns.append(msgspec.structs.replace(turn, generate_s=0.0, tools_s=0.0, calls=calls))
    return msgspec.structs.replace(episode, timings={}, created_at=0.0, turns=turns)


def invariants_hold(run: Path) -> None:
    report = json.loads(agentrl("check", str(run), "--json", cwd=run.parent).stdout)
    assert {name: finding["failed"] for name, finding in report["invariants"].items() if finding["failed"]} == {}


def test_workers_play_what_the_driver_would(counting: Path) -> None:
    here = counting.parent
    rollout = ("rollout", "counting", "--n", "24", "--agent", "hasty", "--group-size", "2")
    agentrl(*rollout, "--out", "alone", cwd=here)
    for backend in ("local", "process"):
        scale = ("--set", f"scale.backend={backend}", "--set", "scale.rollout_workers=2")
        agentrl(*rollout, "--out", backend, *scale, cwd=here)
        assert contents(here / backend) == contents(here / "alone")
        invariants_hold(here / backend)


def test_a_workers_death_costs_no_episode_and_doubles_none(counting: Path) -> None:
    here = counting.parent
    deadly = ("--set", "tools=[{use: ./task.py:Deadly, tasks: [count5, count20], delay: 0.02}]")
    agentrl("rollout", "counting", "--n", "40", "--agent", "oracle", "--out", "run", *TWO_PROCESSES, *deadly, cwd=here)
    with RunDir.read(here / "run") as run:
        rows, failures = run.rows(), run.failures()
        attempts = {episode.task.id: episode.attempt for episode in run.episodes()}
    assert len(rows) == 40
    assert {(row.status, row.reward) for row in rows} == {("done", 1.0)}
    assert {failure["kind"] for failure in failures} == {"WorkerDied"}
    assert "was killed by SIGKILL" in failures[0]["message"]
    assert attempts["count5"] > 0
    assert sum(attempts.values()) == len(failures)
    invariants_hold(here / "run")


def test_an_episode_that_kills_every_worker_is_given_up(counting: Path) -> None:
    here = counting.parent
    deadly = ("--set", "tools=[{use: ./task.py:Deadly, tasks: [count0], times: 9}]", "--set", "concurrency=1")
    agentrl("rollout", "counting", "--n", "3", "--agent", "oracle", "--out", "run", *TWO_PROCESSES, *deadly, cwd=here)
    with RunDir.read(here / "run") as run:
        status = {row.id.split("-")[-1]: (row.status, row.reward) for row in run.rows()}
        finals = [failure["final"] for failure in run.failures()]
    assert status == {"count0#0": ("infra_error", None), "count1#0": ("done", 1.0), "count2#0": ("done", 1.0)}
    assert finals == [False, False, True]
    invariants_hold(here / "run")


def test_when_no_worker_is_left_the_run_stops_and_goes_on_later(counting: Path) -> None:
    here = counting.parent
    deadly = ("--set", "tools=[{use: ./task.py:Deadly, tasks: [count4], times: 2}]", "--set", "concurrency=1")
    command = ("rollout", "counting", "--n", "8", "--agent", "oracle", "--out", "run", *deadly)
    done = agentrl(*command, *TWO_PROCESSES, "--set", "scale.restarts=0", cwd=here, ok=False)
    assert done.returncode == 1
    assert "all 2 workers died" in done.stderr
    assert "SIGKILL" in done.stderr
    agentrl(*command, *TWO_PROCESSES, cwd=here)
    with RunDir.read(here / "run") as run:
        assert {(row.status, row.reward) for row in run.rows()} == {("done", 1.0)}
        assert len(run.rows()) == 8
    invariants_hold(here / "run")


def test_long_outputs_come_along(counting: Path) -> None:
    here = counting.parent
    flood = ("--set", "tools=[./task.py:Flood]", "--agent", "flooding")
    agentrl("rollout", "counting", "--n", "6", "--out", "run", *TWO_PROCESSES, *flood, cwd=here)
    with RunDir.read(here / "run") as run:
        blobs = [turn.calls[0].blob for episode in run.episodes() for turn in episode.turns[:1]]
        assert {run.get_blob(sha) for sha in blobs if sha is not None} == {b"Flood" * 10_000}
    invariants_hold(here / "run")


def test_a_recipe_that_cannot_be_built_says_so(counting: Path) -> None:
    code = counting / "task.py"
    code.write_text(
        code.read_text() + "\nif __import__('sys').argv[0].endswith('process.py'): raise OSError('no GPU')\n"
    )
    run = ("rollout", "counting", "--agent", "oracle", *TWO_PROCESSES)
    done = agentrl(*run, cwd=counting.parent, ok=False)
    assert done.returncode == 1
    assert "cannot be imported: OSError: no GPU" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def trainable(counting: Path) -> Path:
    (counting / "recipe.yaml").write_text((counting / "recipe.yaml").read_text() + TRAINING)
    return counting


def test_training_with_workers_is_training_without(trainable: Path) -> None:
    """The embedded engine stays with the trainer; workers reach it through the gateway."""
    here, name = trainable.parent, str(trainable)
    train_into(here / "alone", load_recipe(name, ["train.iterations=2"]))
    train_into(here / "crew", load_recipe(name, ["train.iterations=2", "scale.rollout_workers=2"]))
    assert metrics(here / "crew") == metrics(here / "alone")
    invariants_hold(here / "crew")


def test_the_staleness_bound_holds_with_workers(trainable: Path) -> None:
    here = trainable.parent
    stale = ["train.staleness=1", "train.importance={high: 2}", "train.iterations=3"]
    delay = "tools=[{use: ./task.py:Counter, delay: 0.02}]"
    processes = ["scale.backend=process", "scale.rollout_workers=2"]
    train_into(here / "run", load_recipe(str(trainable), [*stale, delay, *processes]))
    with RunDir.read(here / "run") as run:
        lines = [line for line in run.metrics() if line["split"] == "train"]
        versions = {span.version for e in run.episodes(split="train") for node in e.nodes for span in node.versions}
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    assert max(line["staleness_max"] for line in lines) <= 1
    assert versions <= {0, 1, 2}
    assert len(versions) > 1, "new weights reach the engine that the workers ask"
    invariants_hold(here / "run")


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
        engine = VLLMEngine(EngineSettings(use="vllm", urls=urls), urls, tokenizer=ByteTokenizer(), room=10)
        stack.push_async_callback(engine.close)
        await engine.start()
        parts = await stack.enter_async_context(crewed(parts))
        harness = parts.harness(engine, parts.renderer(ByteTokenizer()), None)
        episodes = [episode async for episode in Runner(harness, concurrency=4).run(plans(8))]
    assert {(episode.status, episode.answer) for episode in episodes} == {("done", "y")}
    assert server.greeted == 3, "the driver, and each worker"
