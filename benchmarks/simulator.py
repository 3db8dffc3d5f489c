"""Seconds that the simulator predicts, and those of the real loop: `python -m benchmarks.simulator`.

Plays pipelines for real and compares. Real are the loops, admission, runner, sessions, tools, rewards, store and
checkpoints, with a model that is too small to matter; an engine sleeps as long as a replica's steps take, step by step,
and the trainer as long as an update does, so that not this machine's noise decides. Tools sleep by the simulator's own
draws: both see the same workload. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.api.run_dirs import begin_run
from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.loader import load_recipe
from agentrl.distributed.worker_pool import open_runners
from agentrl.models.load import LoadedModel
from agentrl.preflight.plan import plan
from agentrl.reporters.terminal import Terminal
from agentrl.simulate.pipeline import EngineCosts, Pipeline
from agentrl.simulate.simulator import predict
from agentrl.training.assembly import training
from agentrl.training.batch.builder import TrainingBatch
from agentrl.training.rollout_buffer import RolloutBatch
from agentrl.types.engine import Completion, Engine, Sampling
from agentrl.types.episode import VersionSpan
from agentrl.types.seeds import derive_seed
from agentrl.types.task import Message, Task
from benchmarks.harness import Benchmark, Report, Row
from benchmarks.pipeline import task

RECIPE = Path(__file__).parent / "pipeline" / "recipe.yaml"
CALL = "There is work left to do. <work/>"
WITHIN = 0.15

_BASE: dict[str, Any] = {
    "groups": 4, "group_size": 8, "concurrency": 512,
    "episode": {"turns": 4, "tool_s": 0.1},
    "engine": {"step_s": 0.01},
    "trainer": {"update_s": 0.6, "sync_s": 0.1},
}  # fmt: skip
HEAVY = {"turns": 4, "tool_s": {"mean": 0.15, "sigma": 1.5}}
PIPELINES: dict[str, dict[str, Any]] = {
    "in turns, fixed times": {},
    "in turns, heavy-tailed tools": {"episode": HEAVY},
    "beside the trainer, eta 1": {"episode": HEAVY, "max_staleness": 1},
    "beside the trainer, eta 4, 24 at once": {"episode": HEAVY, "max_staleness": 4, "concurrency": 24},
    "steps that grow with the batch, 2 replicas": {
        "episode": HEAVY, "max_staleness": 1, "engine": {"step_s": 0.004, "step_s_per_request": 0.0015, "replicas": 2},
    },
    "a full engine: 8 at once": {"max_staleness": 1, "engine": {"step_s": 0.01, "max_batch": 8}},
    "a slow trainer": {"episode": HEAVY, "max_staleness": 2, "trainer": {"update_s": 1.5, "sync_s": 0.2}},
}  # fmt: skip


class Prediction(Row):
    """A pipeline, played and predicted. `error` is relative."""

    pipeline: str
    real_s: float
    predicted_s: float
    error: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Prediction,
    kind="compare",
    beside="the real loops, with an engine and a trainer that sleep",
    smoke={"only": "fixed times", "iterations": 2},
    minutes=3,
)


class SleepingReplica:
    """Continuous batching in real time: sleeps for every step of the batch."""

    def __init__(self, costs: EngineCosts) -> None:
        self.costs, self.load = costs, 0
        self._room = asyncio.Semaphore(costs.max_batch)
        self._left: dict[asyncio.Future[None], int] = {}
        self._stepping: asyncio.Task[None] | None = None

    async def generate(self, tokens: int) -> None:
        """Returns when a reply of so many tokens is complete."""
        self.load += 1
        try:
            async with self._room:
                done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._left[done] = tokens
                if self._stepping is None or self._stepping.done():
                    self._stepping = asyncio.create_task(self._steps())
                await done
        finally:
            self.load -= 1

    async def _steps(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while self._left:
            batch = list(self._left)
            due += self.costs.step_s + self.costs.step_s_per_request * len(batch)
            await asyncio.sleep(due - clock())
            for request in batch:
                self._left[request] -= 1
                if not self._left[request]:
                    del self._left[request]
                    request.set_result(None)


class SleepingEngine(Engine):
    """Says `CALL` in every turn, after the time that a replica would have taken."""

    name, trainable, max_context = "sleeping", True, 4096

    def __init__(self, pipeline: Pipeline, loaded: LoadedModel) -> None:
        tokenizer = HFTokenizer(loaded.tokenizer)
        self.reply = [*tokenizer.encode(CALL, special=False), tokenizer.stop_ids[0]]
        self.replicas = [SleepingReplica(pipeline.engine) for _ in range(pipeline.engine.replicas)]
        self.pipeline, self.version = pipeline, 0

    def begin_session(self, session: str, task_: Task, messages: list[Message], seed: int) -> None:
        # train/ITERATION/INDEX-TASK#MEMBER: the simulator numbers episodes in that order.
        if session.startswith("train/"):
            _, iteration, rest = session.split("/")
            group = int(iteration) * self.pipeline.groups + int(rest.split("-")[0])
            number = group * self.pipeline.group_size + int(rest.split("#")[1])
            task.DRAWS.set(random.Random(derive_seed(self.pipeline.seed, "episode", number)))

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        ids, version = self.reply, self.version
        await min(self.replicas, key=lambda replica: replica.load).generate(len(ids))
        spans = [VersionSpan(version, 0, len(ids))]
        return Completion(token_ids=ids, logprobs=[-0.5] * len(ids), finish="stop", versions=spans)

    async def update(self, weights: Any, version: int) -> None:
        if version:
            await asyncio.sleep(self.pipeline.trainer.sync_s)
        self.version = version


async def play(pipeline: Pipeline, folder: Path, workers: int) -> tuple[float, int]:
    """Plays a pipeline for real. Returns seconds, and the tokens of a reply."""
    sets = {
        "train.iterations": pipeline.iterations, "train.groups": pipeline.groups,
        "train.group_size": pipeline.group_size, "concurrency": pipeline.concurrency,
        "tools.0.costs": pipeline.episode.model_dump_json(), "scale.rollout_workers": workers,
        "train.max_staleness": pipeline.max_staleness,
    }  # fmt: skip
    recipe = load_recipe(str(RECIPE), [f"{key}={value}" for key, value in sets.items()])
    engines: list[SleepingEngine] = []

    def engine_for(loaded: LoadedModel) -> SleepingEngine:
        engines.append(SleepingEngine(pipeline, loaded))
        return engines[-1]

    async def learn(rollouts: RolloutBatch) -> tuple[TrainingBatch, dict[str, Any]]:
        await asyncio.sleep(pipeline.trainer.update_s)
        return TrainingBatch([], rollouts.groups, {}), {}

    shutil.rmtree(folder, ignore_errors=True)
    run = begin_run(folder, recipe, "train")
    try:
        stage, progress = plan(recipe).rl[-1], Terminal(console=Console(file=sys.stderr))
        async with (
            open_runners(stage.parts) as runners,
            training(stage, run, progress, runners, engine_for=engine_for) as loop,
        ):
            loop._learn = learn  # type: ignore[method-assign]
            began = time.perf_counter()
            await loop.run()
            seconds = time.perf_counter() - began
    finally:
        run.close()
    return seconds, len(engines[0].reply)


def compare(name: str, changes: dict[str, Any], out: Path) -> Prediction:
    """One pipeline, played and predicted."""
    pipeline = Pipeline.model_validate({**_BASE, **changes})
    seconds, reply = asyncio.run(play(pipeline, out / name.replace(" ", "-").replace(",", ""), 0))
    costs = {"reply_tokens": reply, "prompt_tokens": 0, "observation_tokens": 0}
    told = Pipeline.model_validate({**pipeline.model_dump(), "episode": {**pipeline.episode.model_dump(), **costs}})
    predicted = predict(told).seconds
    return Prediction(
        pipeline=name,
        real_s=round(seconds, 2),
        predicted_s=round(predicted, 2),
        error=round(predicted / seconds - 1, 3),
    )


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--out", type=Path, default=Path("runs/simulator"))
    parser.add_argument("--only", default="", help="pipelines whose name has this inside")
    parser.add_argument("--iterations", type=int, default=6)
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    chosen = {name: changes for name, changes in PIPELINES.items() if given.only in name}
    report.plan(len(chosen))
    found = []
    for name, changes in chosen.items():
        found.append(compare(name, {**changes, "iterations": given.iterations}, given.out))
        report.row(found[-1])
        report.ratio(f"seconds, {name}", ("simulated", found[-1].predicted_s), ("real", found[-1].real_s))
        report.done(name)
    table = Table("pipeline", "real s", "predicted s", "error", box=None)
    for each in found:
        table.add_row(each.pipeline, str(each.real_s), str(each.predicted_s), f"{each.error:+.1%}")
    Console(width=120).print(table)
    errors = [abs(each.error) for each in found]
    report.say(f"median error {statistics.median(errors):.1%}")
    report.budget("largest error", max(errors), at_most=WITHIN)


if __name__ == "__main__":
    sys.exit(main())
