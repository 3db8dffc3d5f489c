"""Scoring ends: what an agent makes a verifier spend or raise is a 0 with a note. The load of the machine is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import agentrl.rewards
from agentrl.rewards import grading, reward
from agentrl.rewards.checker import Checker
from agentrl.rewards.components import Component, RewardError, RewardSet
from agentrl.rewards.deadline import ScoringDeadline, allowed_s, uncounted
from agentrl.rewards.functions.code import code_tests
from agentrl.rewards.functions.state import state_check
from agentrl.rewards.grading import PATIENCE, Budget, RanOut, Unverified, budget, graded, place
from agentrl.sandbox.helper import Starved
from agentrl.types.episode import Episode
from agentrl.types.errors import EngineError, TaskError
from agentrl.types.sandbox import ExecResult, Health, Sandbox, SandboxSpec
from agentrl.types.task import Task
from tests.clock import Clock
from tests.rewards.make import make_episode, turn


def made_episode(turns: int = 1, answer: str = "", data: dict[str, Any] | None = None) -> Episode:
    return make_episode(Task.of("t", "Do it.", **(data or {})), *[turn() for _ in range(turns)], answer=answer)


class Machine:
    """A sandbox whose programs take as much processor time and wall time as a test says.

    Args:
        cpu: cores that a program keeps busy.
        needs_s: processor time after which it ends by itself.
    """

    def __init__(self, clock: Clock, cpu: float, needs_s: float = 1e9) -> None:
        self.clock, self.cpu, self.needs_s, self.used, self.runs = clock, cpu, needs_s, 0.0, 0
        self.spec = SandboxSpec()
        self.timeouts: list[float] = []

    async def health(self) -> Health:
        return Health(alive=True, processes=1)

    def cpu_s(self) -> float | None:
        return self.used

    async def exec(self, command: Any, *, timeout_s: float = 60.0, **settings: Any) -> ExecResult:
        if "kill -9 -1" in command:
            return ExecResult(0, "ok")
        self.runs += 1
        self.timeouts.append(timeout_s)
        ran = used = 0.0
        while ran < timeout_s:
            step = min(0.25, timeout_s - ran)
            self.clock.forward(step)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ran, used = ran + step, used + step * self.cpu
            self.used += step * self.cpu
            if used >= self.needs_s:
                return ExecResult(0, "ok")
        return ExecResult(143, "timeout")

    async def write(self, path: str, content: bytes) -> None:
        pass

    async def close(self) -> None:
        pass

    async def read(self, path: str, limit: int = 0) -> bytes:
        return b""


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, still=True)


def built_in(source: str, name: str = "verifier", **known: Any) -> Callable[..., Any]:
    """A function that counts as one of ours."""
    path = str(Path(agentrl.rewards.__file__).parent / "made.py")
    names: dict[str, Any] = {"__name__": "agentrl.rewards.made", "reward": reward, **known}
    exec(compile(source, path, "exec"), names)
    return cast(Callable[..., Any], names[name])


def component(function: Callable[..., Any], **settings: Any) -> Component:
    (made,) = RewardSet.from_recipe({"it": {"use": function, **settings}}).components
    return made


async def run(one: Budget, machine: Machine, timeout_s: float = 10.0) -> ExecResult:
    return await one.exec(cast(Sandbox, machine), ["program"], timeout_s=timeout_s)


async def test_a_program_that_computes_too_long_times_out(clock: Clock) -> None:
    machine = Machine(clock, cpu=1.0)
    assert (await run(Budget(300.0, final=False), machine)).outcome == "timeout"
    assert machine.used < 2 * 10


async def test_a_program_that_gets_a_fifth_of_a_core_has_its_time(clock: Clock) -> None:
    machine = Machine(clock, cpu=0.25, needs_s=9.0)
    assert (await run(Budget(300.0, final=False), machine)).ok


async def test_a_program_on_many_cores_has_its_wall_time(clock: Clock) -> None:
    machine = Machine(clock, cpu=16.0, needs_s=100.0)
    assert (await run(Budget(300.0, final=False), machine)).ok


async def test_a_program_that_sleeps_is_run_once_more_alone_and_then_judged(clock: Clock) -> None:
    machine, alone = Machine(clock, cpu=0.0), []

    async def call() -> str:
        alone.append(budget().final)
        return (await run(budget(), machine)).outcome

    async with ScoringDeadline(300.0):
        assert await graded(call, ["sandbox"]) == "timeout"
    assert alone == [False, True]
    assert machine.timeouts == [PATIENCE * 10.0] * 2


async def test_the_second_time_no_other_verifier_runs(clock: Clock) -> None:
    running, most = [0], {False: 0, True: 0}
    starved = [True]

    async def call(first: bool) -> str:
        running[0] += 1
        most[budget().final] = max(most[budget().final], running[0])
        await asyncio.sleep(0)
        running[0] -= 1
        if first and starved[0] and not budget().final:
            raise RanOut("no processor time")
        return "right"

    async with ScoringDeadline(300.0):
        found = await asyncio.gather(*(graded(lambda k=k: call(k % 3 == 0), ["sandbox"]) for k in range(30)))
    assert found == ["right"] * 30
    assert most[True] == 1


async def test_waiting_for_a_place_counts_nowhere(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "CORES", 1)

    async def call() -> str:
        clock.forward(200.0)
        await asyncio.sleep(0)
        return "right"

    async def one() -> str:
        async with ScoringDeadline(300.0):
            return cast(str, await graded(call, ["sandbox"]))

    assert await asyncio.gather(*(one() for _ in range(40))) == ["right"] * 40


@pytest.mark.parametrize("starved", [1, 2])
async def test_what_a_busy_machine_starves_is_asked_again_alone_and_never_0(
    starved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker, finals = Checker("module"), list[bool]()

    async def once(*asked: Any) -> str:
        finals.append(budget().final)
        if len(finals) <= starved:
            raise Starved("a helper process did not get 5 s of processor time")
        return "right"

    def function() -> None: ...

    monkeypatch.setattr(checker, "_once", once)
    verdict = graded(lambda: checker.ask(function, cpu_s=5.0), [])
    if starved == 2:
        with pytest.raises(Starved):
            await verdict
    else:
        assert await verdict == "right"
    assert finals == [False, True]


async def test_workers_of_one_machine_share_its_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "CORES", 8)
    monkeypatch.setattr(grading, "_SHARED_BY", [1])
    grading.share_places(4)
    running = most = 0

    async def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await asyncio.gather(*(graded(call, ["sandbox"]) for _ in range(20)))
    assert most == 2


async def test_a_verifier_has_limits_score_s_twice(clock: Clock) -> None:
    calls = []

    async def call() -> str:
        calls.append(allowed_s())
        clock.forward(301.0)
        await asyncio.Event().wait()
        return ""

    with pytest.raises(Unverified, match=r"timeout: no verdict within limits\.score_s \(300 s\)"):
        async with ScoringDeadline(300.0):
            await graded(call, [])
    assert calls == [300.0, 300.0]


async def test_a_slow_engine_is_an_infrastructure_failure(clock: Clock) -> None:
    async def call() -> str:
        clock.forward(301.0)
        await asyncio.Event().wait()
        return ""

    with pytest.raises(EngineError, match="no verdict"):
        async with ScoringDeadline(300.0):
            await graded(call, ["engine"])


async def test_a_deadline_that_passed_while_it_stood_still_passes_later(clock: Clock) -> None:
    with pytest.raises(TimeoutError):
        async with ScoringDeadline(10.0):
            with uncounted():
                clock.forward(100.0)
                await asyncio.sleep(0)
            clock.forward(9.0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            clock.forward(2.0)
            await asyncio.sleep(1000)


@pytest.mark.parametrize("what", ["1 / 0", "float('x')", "[][1]", "{}['a']", "int('9' * 10_000)", "b''.decode(1)"])
async def test_what_an_agent_makes_a_built_in_raise_is_0_with_a_note(what: str) -> None:
    it = component(built_in(f"def verifier(episode):\n    return {what}\n"))
    value, note = await it(made_episode().task, made_episode())
    assert value == 0.0
    assert note.startswith("the verifier raised ")


async def test_each_shape_of_reward_has_its_zero() -> None:
    episode = made_episode(turns=3)
    listed = built_in("@reward(per_turn=True)\ndef verifier(episode):\n    return 1 / 0\n")
    assert (await component(listed)(episode.task, episode))[0] == [0.0] * 3
    of_turn = built_in("def verifier(turn):\n    return 1 / 0\n")
    assert (await component(of_turn)(episode.task, episode))[0] == [0.0] * 3
    of_group = component(built_in("def verifier(group):\n    return 1 / 0\n"))
    assert [each.value for each in await of_group.call({"group": [episode, episode]})] == [0.0, 0.0]


async def test_a_function_of_the_user_that_raises_is_its_bug() -> None:
    @reward(verifier=True)
    def declared(episode: Any) -> float:
        raise ValueError("a bug")

    def plain(episode: Any) -> float:
        raise ValueError("a bug")

    called = built_in("def verifier(judge):\n    return judge()\n")
    for it in (component(declared), component(plain)):
        with pytest.raises(RewardError, match="a bug"):
            await it(made_episode().task, made_episode())
    with pytest.raises(RewardError, match="a bug"):
        await component(called, judge=lambda: plain(None))(made_episode().task, made_episode())


async def test_a_wrong_task_is_the_task_s_fault() -> None:
    it = component(built_in("def verifier(task):\n    raise error('no gold')\n", error=TaskError))
    with pytest.raises(TaskError, match="no gold"):
        await it(made_episode().task, made_episode())


async def test_tests_that_all_time_out_end_before_the_budget_does(clock: Clock) -> None:
    """Each has its time, and together they have the verifier's: the rest is not passed, and the episode is scored."""
    machine = Machine(clock, cpu=1.0)

    async def open_sandbox() -> Sandbox:
        return cast(Sandbox, machine)

    episode = made_episode(answer="while True:\n    pass", data={"tests": [{"input": "", "output": "1"}] * 100})
    it = component(code_tests, partial=True)
    async with ScoringDeadline(300.0):
        value, note = await it(episode.task, episode, None, open_sandbox)
    assert value == 0.0
    assert "timeout" in note
    assert machine.used < 300
    assert machine.runs < 31


async def test_many_cores_do_not_spend_the_budget_at_once(clock: Clock) -> None:
    machine = Machine(clock, cpu=16.0, needs_s=100.0)
    episode = made_episode(data={"state": [{"command": "make", "exit": 0}] * 20})
    async with ScoringDeadline(300.0):
        assert (await component(state_check)(episode.task, episode, cast(Sandbox, machine)))[0] == 1.0
    assert machine.used > 1000


async def test_one_core_for_all_tests_does_not_make_them_fail(clock: Clock) -> None:
    machine = Machine(clock, cpu=0.3, needs_s=2.0)

    async def open_sandbox() -> Sandbox:
        return cast(Sandbox, machine)

    checks = [{"command": "make", "exit": 0}] * 20
    episode = made_episode(data={"state": checks})
    async with ScoringDeadline(300.0):
        value, _ = await component(state_check)(episode.task, episode, cast(Sandbox, machine), open_sandbox)
    assert value == 1.0


async def test_a_verifier_of_a_user_s_function_leaves_it_half_of_its_time(clock: Clock) -> None:
    machine = Machine(clock, cpu=0.0)
    async with ScoringDeadline(300.0):
        assert (await run(budget(), machine, 120.0)).outcome == "timeout"
    assert machine.timeouts == [150.0]


async def test_who_holds_a_place_needs_no_other() -> None:
    async with place():
        await asyncio.gather(*(graded(lambda: asyncio.sleep(0), ["sandbox"]) for _ in range(100)))
