"""Weights on their way to an engine: merged ones for an engine that refuses adapters, and how the canary asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from agentrl.training.canary import FLOAT32, ROWS, Canary
from agentrl.training.publisher import WeightPublisher
from agentrl.types.engine import Completion, Engine, NoAdapters, Sampling
from agentrl.types.reporter import Reporter
from tests.waiting import turns


class Source(Engine):
    """An engine that samples nothing."""

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        raise AssertionError("nothing is sampled")


class Notes(Reporter):
    """Keeps the lines for the user."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(text)


class Refusing(Source):
    """An engine whose server refuses adapters when the first one comes."""

    takes_adapters = True

    def __init__(self) -> None:
        self.taken: list[tuple[Any, int]] = []

    async def update(self, weights: Any, version: int) -> None:
        if weights == "adapter":
            self.takes_adapters = False
            raise NoAdapters("the server was started without --enable-lora", place="engine")
        self.taken.append((weights, version))


class Trainer:
    """A trainer that gives adapters to an engine that takes them."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def publish(self, engine: Engine, checkpoint: Any = None) -> str:
        self.asked.append(checkpoint)
        return "adapter" if engine.takes_adapters else "merged"


async def test_an_engine_that_refuses_an_adapter_gets_merged_weights_of_the_same_version() -> None:
    recipe: Any = SimpleNamespace(model=SimpleNamespace(dtype="bfloat16"))
    engine, reporter, trainer = Refusing(), Notes(), Trainer()
    source: Any = trainer
    publisher = WeightPublisher(recipe, source, engine, None, reporter)
    checkpoint: Any = "it-00002"
    await publisher.hand_over(engine, 2, checkpoint)
    assert engine.taken == [("merged", 2)]
    assert trainer.asked == [checkpoint, checkpoint], "an earlier version stays the one that is sent"
    assert reporter.told == [
        "LoRA: the engine gets weights merged in bfloat16, because the server was started without --enable-lora"
    ]
    await publisher.publish(3)
    assert engine.taken == [("merged", 2), ("merged", 3)]
    assert len(reporter.told) == 1, "it is told once"


class Spread(Source):
    """An engine of several servers, whose log-probability of a token tells what it was asked after."""

    spreads_scores: ClassVar[bool] = True

    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []
        self.all_asked = asyncio.Event()

    async def score(
        self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
    ) -> list[list[float]]:
        self.prefixes.append(list(prefix))
        if len(self.prefixes) == ROWS:
            self.all_asked.set()
        await self.all_asked.wait()
        assert at is not None
        return [[-float(token) - 100 * sum(prefix[:place])] for place, (token,) in zip(at, continuations, strict=True)]


async def test_the_canary_asks_all_servers_of_an_engine_at_once() -> None:
    """Row by row, each token after all tokens before it: as an engine of one server is asked."""

    class Single(Spread):
        spreads_scores = False

        async def score(
            self, prefix: Sequence[int], continuations: Sequence[Sequence[int]], at: Sequence[int] | None = None
        ) -> list[list[float]]:
            rows = [[*prefix, *each] for each in continuations]
            return [[-float(row[k]) - 100 * sum(row[:k]) for k in range(1, len(row))] for row in rows]

    prompts = [[1, 10 + k, 20 + k, 30 + k][: 3 + k % 2] for k in range(ROWS)]
    canary, engine = Canary(prompts, 256, FLOAT32), Spread()
    asked = asyncio.create_task(canary.sampled(engine))
    await turns()
    assert engine.prefixes == prompts, "no server waits for another one"
    found, expected = await asked, await canary.sampled(Single())
    assert np.array_equal(found, expected, equal_nan=True)
    canary.check(0, found, expected)
    assert canary.metrics["canary_gap"] == 0
