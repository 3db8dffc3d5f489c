"""The contract of a trainer of one's own: what it declares and does not implement is named, by class and by what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentrl.training.backend import TrainerBackend
from agentrl.types.errors import TrainError


class Bare(TrainerBackend):
    """A trainer that implements what it must, and nothing else."""

    async def open(self) -> Any: ...
    async def begin(self) -> None: ...
    async def logprobs(self, samples: Any, *, reference: bool = False) -> Any: ...
    async def update(self, samples: Any, *, seed: int, progress: float) -> dict[str, float]:
        return {"rows": float(len(samples)), "seed": float(seed), "progress": progress}

    async def fit(self, samples: Any, loss: Any, lr: float, *, fresh: bool = False) -> Any: ...
    async def publish(self, engine: Any, checkpoint: Any = None) -> Any: ...
    async def save(self, folder: Any, *, resumes: bool = True) -> Any: ...
    async def load(self, state: Any) -> None: ...


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda it: it.column("entropy", []), "Bare declares the column entropy, and does not compute it"),
        (lambda it: it.fit_column("value", []), "Bare declares the column value, and does not train it"),
        (lambda it: it.accumulate([], progress=0.0), "Bare declares the feature streaming, and does not implement it"),
    ],
    ids=["column", "fit_column", "accumulate"],
)
async def test_what_is_declared_and_missing_is_named(call: Callable[[Bare], Awaitable[Any]], why: str) -> None:
    with pytest.raises(TrainError) as refused:
        await call(Bare())
    assert refused.value.message == why


async def test_a_bare_trainer_learns_by_update_and_records_no_tokens() -> None:
    one: Any = object()
    assert await Bare().learn([one], [], seed=3, progress=0.5) == {"rows": 1, "seed": 3, "progress": 0.5}
    assert await Bare().learn([], [], seed=3, progress=0.5) == {}, "without samples nothing is updated"
    assert tuple(Bare().recorded()) == ()
