"""The simulator against what can be computed by hand, and against the laws that hold for any system of queues."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.simulate.clock import simulated
from agentrl.simulate.pipeline import EngineCosts, Pipeline, Spread
from agentrl.simulate.pipeline_file import simulate
from agentrl.simulate.simulator import SimulatedReplica, predict
from agentrl.types.errors import RecipeError
from tests.command import agentrl


def pipeline(**changes: Any) -> Pipeline:
    """Two groups of two; 3 turns of 10 tokens at 0.1 s and a tool of 0.5 s; an update of 2 s and a sync of 1 s."""
    fixed = {
        "groups": 2, "group_size": 2, "iterations": 5, "concurrency": 100,
        "episode": {"turns": 3, "reply_tokens": 10, "tool_s": 0.5},
        "engine": {"step_s": 0.1},
        "trainer": {"update_s": 2, "sync_s": 1},
    }  # fmt: skip
    return Pipeline.model_validate({**fixed, **changes})


def test_in_turns_with_fixed_times() -> None:
    found = predict(pipeline())
    assert found.iteration_s == pytest.approx(3 * (1.0 + 0.5) + 3)
    assert found.seconds == pytest.approx(5 * 7.5)
    assert found.trainer_busy == pytest.approx(3 / 7.5)
    assert found.engines_busy == pytest.approx(3 / 7.5)
    assert found.batch == pytest.approx(4)
    assert found.in_flight == pytest.approx(4 * 4.5 / 7.5)
    assert found.staleness == 0


def test_without_room_episodes_follow_one_another() -> None:
    assert predict(pipeline(concurrency=1)).iteration_s == pytest.approx(4 * 4.5 + 3)
    assert predict(pipeline(sandboxes=2)).iteration_s == pytest.approx(2 * 4.5 + 3)


def test_beside_the_trainer_the_slower_of_the_two_sets_the_pace() -> None:
    # A group takes 4.5 s and its update 3 s; those of eta + 1 iterations are under way at a time.
    assert predict(pipeline(max_staleness=1, iterations=40)).iteration_s == pytest.approx(7.5 / 2)
    assert predict(pipeline(max_staleness=2, iterations=40)).iteration_s == pytest.approx(3)
    training = {"update_s": 9, "sync_s": 1}
    trainer_slow = predict(pipeline(max_staleness=1, iterations=40, trainer=training))
    assert trainer_slow.iteration_s == pytest.approx(10)
    assert trainer_slow.seconds == pytest.approx(40 * 10 + 4.5)
    assert 0.9 < trainer_slow.staleness <= 1
    assert predict(pipeline(max_staleness=0, iterations=40)) == predict(pipeline(iterations=40))


def test_trainers_share_their_tokens() -> None:
    # 500 + 3 * (10 + 200) tokens an episode, four episodes.
    found = predict(pipeline(trainer={"gpus": 4, "s_per_token": 0.001}))
    assert found.iteration_s == pytest.approx(4.5 + 4 * 1130 * 0.001 / 4)


def test_a_slow_episode_holds_up_a_run_in_turns_and_hardly_one_beside_the_trainer() -> None:
    heavy = {"turns": 3, "reply_tokens": 10, "tool_s": {"mean": 0.5, "sigma": 2.0}}
    turns = predict(pipeline(groups=8, iterations=30, episode=heavy))
    beside = predict(pipeline(groups=8, iterations=30, episode=heavy, max_staleness=4))
    assert beside.episodes_per_s > 1.5 * turns.episodes_per_s
    assert 0 < beside.staleness <= 4


async def finish_times(costs: EngineCosts, *requests: tuple[float, float, float]) -> list[float]:
    """When requests end, each (begin, fresh tokens, reply)."""
    replica = SimulatedReplica(costs)

    async def one(begin: float, fresh: float, reply: float) -> float:
        await asyncio.sleep(begin)
        await replica.generate(fresh, fresh, reply)
        return asyncio.get_running_loop().time()

    return list(await asyncio.gather(*(one(*request) for request in requests)))


@pytest.mark.parametrize(
    ("costs", "requests", "ends"),
    [
        # Alone, and two that do not hinder each other.
        ({"step_s": 0.1}, [(0, 0, 10)], [1.0]),
        ({"step_s": 0.1}, [(0, 0, 10), (0.5, 0, 10)], [1.0, 1.5]),
        # Processor sharing: the first has the replica for 1 s, then half of it, then again all.
        ({"step_s": 0, "step_s_per_request": 0.1}, [(0, 0, 20), (1, 0, 5)], [2.5, 2.0]),
        # A batch of one: the second waits.
        ({"step_s": 0.1, "max_batch": 1}, [(0, 0, 10), (0, 0, 10)], [1.0, 2.0]),
        # A prompt of 100 tokens stops everybody for 1 s.
        ({"step_s": 0.1, "prefill_s_per_token": 0.01}, [(0, 0, 10), (0.5, 100, 10)], [2.0, 2.5]),
        # A context of 100, and in the mean 5 of the reply.
        ({"step_s": 0, "step_s_per_token": 0.001}, [(0, 100, 10)], [1.05]),
        ({"step_s": 0.1, "latency_s": 0.25}, [(0, 0, 10)], [1.25]),
    ],
)
def test_continuous_batching(costs: dict[str, Any], requests: list[Any], ends: list[float]) -> None:
    engine = EngineCosts.model_validate(costs)
    assert simulated(finish_times(engine, *requests)) == pytest.approx(ends)


@settings(deadline=None, max_examples=30)
@given(
    episodes=st.integers(1, 12),
    turns=st.integers(1, 6),
    service=st.floats(0.01, 2),
    think=st.floats(0, 5),
    sigma=st.floats(0, 2),
)
def test_the_asymptotic_bounds_hold(episodes: int, turns: int, service: float, think: float, sigma: float) -> None:
    """N customers, one queue of service S, think time Z (here with S of the reply): whatever the distribution, the time
    for all is at least that of the queue's work, at least that of one alone, and at most that of one after another
    (Denning and Buzen, operational analysis, 1978)."""
    costs = {"turns": turns, "reply_tokens": 1, "tool_s": {"mean": think, "sigma": sigma}}
    run = {"groups": 1, "iterations": 1, "episode": costs, "engine": {"step_s": 0}, "trainer": {}}
    together = predict(pipeline(**run, group_size=episodes, worker_s_per_turn=service))
    one_by_one = predict(pipeline(**run, group_size=episodes, worker_s_per_turn=service, concurrency=1))
    unhindered = predict(pipeline(**run, group_size=episodes))
    work = episodes * turns * service
    assert together.seconds >= work - 1e-9
    assert together.seconds >= unhindered.seconds - 1e-9
    assert together.seconds <= one_by_one.seconds + 1e-9
    assert together.seconds <= unhindered.seconds + work + 1e-9
    assert together.workers_busy == pytest.approx(work / together.seconds)  # the utilisation law
    assert one_by_one.in_flight == pytest.approx(1)  # Little's law


def test_a_spread_has_its_mean() -> None:
    rng = random.Random(0)
    values = [Spread(mean=2.0, sigma=1.0).draw(rng) for _ in range(20_000)]
    assert sum(values) / len(values) == pytest.approx(2.0, rel=0.05)
    assert sorted(values)[len(values) // 2] == pytest.approx(2.0 * 2.718281828**-0.5, rel=0.05)


def test_who_waits_for_nothing_is_told() -> None:
    with pytest.raises(RuntimeError, match="never happen"):
        simulated(asyncio.Event().wait())


def test_more_machines_give_more_until_the_driver_is_full() -> None:
    run = pipeline(driver_s_per_episode=0.2, iterations=3)
    one, two, many = (predict(run.times(factor)) for factor in (1, 2, 16))
    assert [one.gpus, two.gpus, many.gpus] == [2, 4, 32]
    assert two.episodes_per_s > 1.5 * one.episodes_per_s
    assert many.episodes_per_s < 5
    assert many.driver_busy > 0.6


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("groups: 2\nepisode: {turns: 2, reply_tokens: 20}\n")
    printed = agentrl("simulate", "p.yaml", "--times", "1,4", "--set", "trainer.gpus=2", "--json", cwd=tmp_path).stdout
    assert [each["gpus"] for each in json.loads(printed)] == [3, 12]
    assert "a GPU's" in agentrl("simulate", "p.yaml", "--times", "1,4", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("overrides", "factor", "expected"),
    [
        (["engine.replica=2"], 1, "did you mean 'replicas'?"),
        (["groups=many"], 1, "groups: Input should be a valid integer"),
        ([], 0, "0 times is nothing"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, overrides: list[str], factor: int, expected: str) -> None:
    (tmp_path / "p.yaml").write_text("groups: 2\n")
    with pytest.raises(RecipeError, match=re.escape(expected)):
        simulate(tmp_path / "p.yaml", overrides, [factor])


def test_the_continuous_batch_is_that_of_one_that_steps() -> None:
    """The benchmark's engine, which takes every step of its batch, on the simulated clock."""
    from benchmarks.simulator import SleepingReplica

    costs = EngineCosts(step_s=0.01, step_s_per_request=0.002, max_batch=6)
    requests = [(0.13 * k % 1.7, 0.0, 20.0 + 7 * k % 40) for k in range(30)]

    async def stepping() -> list[float]:
        replica = SleepingReplica(costs)

        async def one(begin: float, tokens: float) -> float:
            await asyncio.sleep(begin)
            await replica.generate(int(tokens))
            return asyncio.get_running_loop().time()

        return list(await asyncio.gather(*(one(begin, tokens) for begin, _, tokens in requests)))

    assert simulated(finish_times(costs, *requests)) == pytest.approx(simulated(stepping()), rel=0.03)
