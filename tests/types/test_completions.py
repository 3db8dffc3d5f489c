"""What an engine gives is checked before anything reads it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.rollouts.faults.budgets import EngineDown
from agentrl.store.check import check
from agentrl.store.run_dir import RunDir
from agentrl.types.engine import Completion, NativeCall, NativeReply, Sampling, sample, score
from agentrl.types.episode import Episode, Usage, VersionSpan
from agentrl.types.errors import DeadPolicy, EngineError
from tests.rollouts.world import collect, make_context, make_parts, specs

GOOD = Completion(token_ids=[1, 2, 3], logprobs=[-1.0, 0.0, -2], finish="stop", versions=[VersionSpan(7, 0, 3)])


class Gives:
    """An engine that gives one thing."""

    name = "gives"

    def __init__(self, given: Any) -> None:
        self.given = given

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Any:
        return self.given

    async def score(self, prefix: Any, continuations: Any, at: Any = None) -> Any:
        return self.given


def sampled(given: Any) -> Completion:
    engine: Any = Gives(given)
    return asyncio.run(sample(engine, [0], Sampling(), "s"))


def lie(**changes: Any) -> Completion:
    return msgspec.structs.replace(GOOD, **changes)


class Subclass(Completion, frozen=True):
    """A completion of one's own class."""


@pytest.mark.parametrize(
    "given",
    [
        GOOD,
        lie(logprobs=[-1e9, -0.0, 0]),
        lie(token_ids=[], logprobs=[], versions=[]),
        lie(token_ids=[], logprobs=[], versions=[VersionSpan(0, 0, 0)]),
        lie(versions=[VersionSpan(1, 0, 2), VersionSpan(2, 2, 3)]),
        lie(usage=Usage(3, 0, 0.0), native=NativeReply("t", [NativeCall("1", "f", "{")])),
        lie(logprobs=[-1.5e308, -1.5e308, -1.5e308]),  # a sum that overflows
        Subclass(token_ids=[4], logprobs=[-1.0], finish="length", versions=[VersionSpan(0, 0, 1)]),
    ],
)
def test_a_completion_passes_as_it_is(given: Completion) -> None:
    assert sampled(given) is given


def test_a_probability_that_rounding_made_larger_than_one_is_one() -> None:
    assert sampled(lie(logprobs=[2e-7, -1.0, 0.0])).logprobs == [0.0, -1.0, 0.0]


LIES = [
    (None, "NoneType"),
    ({"token_ids": [1]}, "dict"),
    ("text", "str"),
    (lie(token_ids=None), "list of integers"),
    (lie(token_ids=(1, 2, 3)), "list of integers"),
    (lie(token_ids=[1, 2, "3"]), "list of integers"),
    (lie(token_ids=[1, 2, 3.0]), "list of integers"),
    (lie(token_ids=[1, 2, True]), "list of integers"),
    (lie(token_ids=[1, 2, None]), "list of integers"),
    (lie(token_ids=[1, -5, 3]), "the token -5"),
    (lie(token_ids=[1, 1 << 70, 3]), "the token 1180591620717411303424"),
    (lie(logprobs=None), "list of numbers"),
    (lie(logprobs=[-1.0, "-1.0", -1.0]), "list of numbers"),
    (lie(logprobs=[-1.0, None, -1.0]), "list of numbers"),
    (lie(logprobs=[-1.0, False, -1.0]), "list of numbers"),
    (lie(logprobs=[-1.0, 1j, -1.0]), "list of numbers"),
    (lie(logprobs=[-1.0, 10**400, -1.0]), "list of numbers"),
    (lie(logprobs=[math.nan, -(10**400), -1.0]), "list of numbers"),
    (lie(logprobs=[-1.0, -1.0]), "2 log-probabilities for 3 tokens"),
    (lie(logprobs=[-1.0] * 4), "4 log-probabilities for 3 tokens"),
    (lie(logprobs=[]), "0 log-probabilities for 3 tokens"),
    (lie(logprobs=[-1.0, 0.5, -1.0]), "log-probability 0.5"),
    (lie(versions=[]), r"spans \[\]"),
    (lie(versions=None), "list of VersionSpan"),
    (lie(versions=[(0, 0, 3)]), "list of VersionSpan"),
    (lie(versions=[VersionSpan(0, 0, 2)]), r"spans \[\(0, 2\)\]"),
    (lie(versions=[VersionSpan(0, 0, 4)]), "spans"),
    (lie(versions=[VersionSpan(0, 1, 3)]), "spans"),
    (lie(versions=[VersionSpan(0, 0, 1), VersionSpan(0, 2, 3)]), "spans"),
    (lie(versions=[VersionSpan(0, 0, 2), VersionSpan(0, 1, 3)]), "spans"),
    (lie(versions=[VersionSpan(0, 0, 3), VersionSpan(0, 3, 3)]), "spans"),
    (lie(versions=[VersionSpan(-1, 0, 3)]), "versions are no numbers"),
    (lie(versions=[VersionSpan(1 << 70, 0, 3)]), "versions are no numbers"),
    (lie(versions=[VersionSpan("1", 0, 3)]), "versions are no numbers"),  # type: ignore[arg-type]
    (lie(finish="error"), "finished by 'error'"),
    (lie(finish=None), "finished by None"),
    (lie(finish=["stop"]), "finished by"),
    (lie(usage=Usage(-1, 1, 0.0)), "usage"),
    (lie(usage=Usage(1, 1 << 70, 0.0)), "usage"),
    (lie(usage=Usage(1, 1, 10**400)), "usage"),
    (lie(usage=Usage(1, 1, -0.5)), "usage"),
    (lie(usage=Usage(1, 1, math.nan)), "usage"),
    (lie(usage={"prompt_tokens": 1}), "usage"),
    (lie(queue_s=-1.0), "it waited -1.0"),
    (lie(decode_s=math.nan), "it waited None and was computed in nan seconds"),
    (lie(native={"text": ""}), "NativeReply"),
    (lie(native=NativeReply("", [("1", "f", "{}")])), "NativeReply"),  # type: ignore[list-item]
    (lie(native=NativeReply("", [NativeCall("1", "f", {})])), "NativeReply"),  # type: ignore[arg-type]
]
"""Things that an engine may give in the place of a completion, and what is wrong with them."""


@pytest.mark.parametrize(("given", "told"), LIES)
def test_what_is_no_completion_is_a_failure_of_the_engine(given: Any, told: str) -> None:
    with pytest.raises(EngineError, match=told) as caught:
        sampled(given)
    assert caught.value.place == "gives"


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_log_probabilities_that_are_not_finite_are_those_of_a_dead_policy(value: float) -> None:
    with pytest.raises(DeadPolicy, match="not finite"):
        sampled(lie(logprobs=[-1.0, value, -1.0]))
    engine: Any = Gives([[-1.0, value]])
    with pytest.raises(DeadPolicy, match="not finite"):
        asyncio.run(score(engine, [0], [[1, 2]]))


@pytest.mark.parametrize(
    "given",
    [
        [[-1.0, 10**400]],
        None,
        [],
        [[-1.0]],
        [[-1.0, -1.0, -1.0]],
        [[-1.0, "x"]],
        [[-1.0, None]],
        [(-1.0, -1.0)],
        [[-1.0] * 2] * 2,
    ],
)
def test_scores_are_one_number_a_token(given: Any) -> None:
    engine: Any = Gives(given)
    with pytest.raises(EngineError, match="no scores of 1"):
        asyncio.run(score(engine, [0], [[1, 2]]))


class Lies(ScriptedEngine):
    """A script whose completions are changed on their way."""

    lie: ClassVar[dict[str, Any]] = {}

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        return msgspec.structs.replace(await super().generate(token_ids, sampling, session), **self.lie)


def ends(task: Any, rng: Any) -> Any:
    yield Say(calls=[("end", {"answer": "z"})])


@pytest.mark.parametrize(
    ("told_by", "error"),
    [
        ({"token_ids": [-3, -4]}, EngineDown),
        ({"logprobs": ["a"]}, EngineDown),
        ({"versions": []}, EngineDown),
        ({"token_ids": [1], "versions": [VersionSpan(0, 0, 1)], "logprobs": [math.nan]}, DeadPolicy),
    ],
)
async def test_a_lie_is_no_data_and_stops_the_run_by_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_by: dict[str, Any], error: type[Exception]
) -> None:
    monkeypatch.setattr(Lies, "lie", told_by)
    parts = make_parts(tmp_path, limits={"backoff_s": 0.0, "retries": 0, "engine_failures": 3})
    seen: list[Episode] = []
    with RunDir.create(tmp_path / "run", {}) as run, pytest.raises(error):
        await collect(make_context(parts, ends, Lies), specs(20), seen=seen, run=run)
    assert {(each.status, each.reward) for each in seen} == {("infra_error", None)}
    assert check(tmp_path / "run").ok
