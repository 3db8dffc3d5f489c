"""What a run bears, cause by cause; and a sandbox backend that is away for a while."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.config.limits import Limits
from agentrl.engines.scripted import Say
from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.faults import outage
from agentrl.rollouts.faults.budgets import Budgets, EngineDown, SandboxDown, ServiceDown, TooManyUserErrors
from agentrl.types.episode import Episode, ErrorRecord
from agentrl.types.errors import AgentRLError, DeadPolicy
from agentrl.types.sandbox import (
    Backend,
    CapabilityMissing,
    SandboxImageUnusable,
    SandboxSpec,
    SandboxStartFailed,
    SandboxUnavailable,
)
from tests.clock import Clock
from tests.rollouts.world import Bench, collect, make_context, make_parts, specs
from tests.store.make import make_episode


def failed(cause: str, status: str = "infra_error") -> Episode:
    error = ErrorRecord(kind="Bad", message="why\n  -> do this", stage="agent", cause=cause)
    return make_episode("e", status=status, error=error)


LIMITS = Limits(engine_failures=3, sandbox_failures=2, service_failures=2, user_errors=1)
SPENT = [
    ("engine", 3, EngineDown, r"failed 3 episodes in a row[\s\S]*do this[\s\S]*limits.engine_failures"),
    ("refusal", 3, EngineDown, r"refused 3 episodes in a row[\s\S]*limits.engine_failures"),
    ("sandbox", 2, SandboxDown, r"2 episodes in a row failed[\s\S]*do this[\s\S]*limits.sandbox_failures"),
    ("service", 2, ServiceDown, r"agents or rewards call failed 2 episodes in a row[\s\S]*limits.service_failures"),
    ("user", 2, TooManyUserErrors, r"2 episodes failed by a bug[\s\S]*limits.user_errors"),
    ("policy", 1, DeadPolicy, "why"),
]


@pytest.mark.parametrize(("cause", "number", "error", "told"), SPENT)
def test_each_cause_has_a_budget_of_its_own(cause: str, number: int, error: type[Exception], told: str) -> None:
    budgets = Budgets(LIMITS)
    one = failed("", "user_error") if cause == "user" else failed(cause)
    for _ in range(number - 1):
        budgets.spend(one)
    with pytest.raises(error, match=told):
        budgets.spend(one)


def test_a_stop_says_where_the_last_failure_came_from() -> None:
    def stop(message: str) -> str:
        error = ErrorRecord(kind="Bad", message=message, stage="agent", cause="service", place="/t.py:9 in step")
        with pytest.raises(ServiceDown) as caught:
            Budgets(Limits(service_failures=1)).spend(make_episode("e", status="infra_error", error=error))
        return caught.value.message

    assert stop("no move\n  -> do this").endswith("the last: no move at /t.py:9 in step")
    assert stop("/t.py:9: no move").endswith("the last: /t.py:9: no move")


def test_a_success_clears_what_counts_in_a_row_and_another_cause_does_not() -> None:
    budgets = Budgets(LIMITS)
    for _ in range(5):
        budgets.spend(failed("engine"))
        budgets.spend(failed("sandbox"))
        budgets.spend(make_episode("e"))
    budgets.spend(failed("", "user_error"))
    budgets.spend(failed("sandbox"))
    for _ in range(9):
        budgets.spend(failed(""))  # a worker that died: its worker pool counts
    with pytest.raises(SandboxDown):
        budgets.spend(failed("sandbox"))
    budgets.spend(make_episode("e"))
    with pytest.raises(TooManyUserErrors):
        budgets.spend(failed("", "user_error"))


class Flaky:
    """A backend whose answers are given: None is a sandbox."""

    name = "flaky"

    def __init__(self, answers: Iterator[Exception | None]) -> None:
        self.answers, self.asked = answers, 0

    async def create(self, spec: SandboxSpec, *, label: str = "") -> Any:
        self.asked += 1
        if (answer := next(self.answers)) is not None:
            raise answer
        return self

    async def close(self) -> None:
        """Nothing to free."""


class BenchInSandbox(Bench):
    """The bench, with a sandbox for every episode."""

    needs_sandbox = True


class Pauses(Clock):
    """Time that passes only in pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch, still=True)
        monkeypatch.setattr(outage.asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.forward(seconds)


def context_on(backend: Flaky, tmp_path: Path, **limits: Any) -> RolloutContext:
    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("end", {"answer": "y"})])

    tools = [f"{__name__}:BenchInSandbox"]
    parts = make_parts(tmp_path, tools=tools, limits={"backoff_s": 0.0, "sandbox_s": 60, **limits})
    return replace(make_context(parts, script), backend=cast(Backend, backend))


def away(times: int) -> Iterator[Exception | None]:
    for _ in range(times):
        yield SandboxUnavailable("nobody answers", remedy="start it")
    while True:
        yield None


async def test_a_short_outage_costs_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, backend = Pauses(monkeypatch), Flaky(away(6))
    failures: list[dict[str, Any]] = []
    episodes = await collect(context_on(backend, tmp_path), specs(4), failures=failures)
    assert [(e.status, e.attempt) for e in episodes] == [("done", 0)] * 4
    assert failures == []
    assert 5 < clock.ahead < 60


async def test_an_outage_that_lasts_stops_the_run_and_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, backend = Pauses(monkeypatch), Flaky(away(10**6))
    seen: list[Episode] = []
    with pytest.raises(SandboxDown, match=r"3 episodes in a row[\s\S]*nobody answers[\s\S]*start it"):
        await collect(context_on(backend, tmp_path, sandbox_failures=3), specs(50), seen=seen)
    assert [(e.status, e.reward, e.error and e.error.cause) for e in seen] == [("infra_error", None, "sandbox")] * 3
    assert clock.ahead == pytest.approx(60), "the second episode does not wait for what the first has waited for"


async def test_rewards_that_wait_for_a_backend_beyond_their_deadline_are_no_bug_in_user_code(tmp_path: Path) -> None:
    (tmp_path / "looks.py").write_text("async def looks(task, fresh_sandbox):\n    await fresh_sandbox()\n")

    def script(task: Any, rng: Any) -> Any:
        yield Say(calls=[("end", {"answer": "y"})])

    limits = {"backoff_s": 0.0, "score_s": 0.05, "sandbox_s": 60, "retries": 0}
    parts = make_parts(tmp_path, limits=limits, rewards={"looks": "./looks.py:looks"})
    context = replace(make_context(parts, script), backend=cast(Backend, Flaky(away(10**6))))
    (episode,) = await collect(context, specs(1))
    assert episode.error is not None
    assert (episode.status, episode.error.cause, episode.error.stage) == ("infra_error", "sandbox", "score")


async def test_a_sandbox_that_does_not_start_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Pauses(monkeypatch)
    backend = Flaky(iter([SandboxStartFailed("setup failed"), None]))
    (episode,) = await collect(context_on(backend, tmp_path), specs(1))
    assert (episode.status, episode.attempt, clock.ahead) == ("done", 1, 0.0)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SandboxImageUnusable("no image 'x'", place="sandbox.spec.image", remedy="build it"), "infra_error"),
        (CapabilityMissing("no network", place="sandbox.spec.network"), "user_error"),
    ],
)
async def test_an_image_that_is_not_there_is_no_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: AgentRLError, status: str
) -> None:
    clock, backend = Pauses(monkeypatch), Flaky(iter([error, None]))
    first, second = await collect(context_on(backend, tmp_path), specs(2))
    assert first.error is not None
    assert (first.status, first.attempt, second.status, clock.ahead) == (status, 0, "done", 0.0)
    assert first.error.message.startswith(f"task {first.task.id!r}, sandbox.spec.")
    assert (error.remedy or "") in first.error.message


SIMULATED = """
from agentrl import Agent, InfraError

class Talks(Agent):
    async def run(self, session):
        await session.generate()
        raise InfraError("the simulated user is down")
"""


async def test_a_service_that_user_code_asks_stops_the_run_when_it_is_down(tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(SIMULATED)
    limits = {"backoff_s": 0.0, "service_failures": 2}
    parts = make_parts(tmp_path, agent={"use": "./talks.py:Talks"}, limits=limits)
    found: list[Episode] = []
    with pytest.raises(ServiceDown, match="the simulated user is down"):
        await collect(make_context(parts, speaks), specs(8), seen=found)
    assert [episode.status for episode in found] == ["infra_error"] * 2


def speaks(task: Any, rng: Any) -> Any:
    yield Say("hello")
