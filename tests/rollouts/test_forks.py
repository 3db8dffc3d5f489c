"""Live forks: `session.fork()` in a running agent."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.api.run import Run
from agentrl.config.credit import CreditSettings
from agentrl.distributed.worker_pool import open_runners
from agentrl.engines.replay import ReplayEngine
from agentrl.engines.scripted import Say, ScriptedEngine
from agentrl.estimators.registry import load_credit
from agentrl.estimators.table import CreditTable
from agentrl.rewards.functions.cost import spent
from agentrl.rewards.functions.length import overlong
from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.context import RolloutContext
from agentrl.rollouts.states.registry import StateRule
from agentrl.store import RunDir, check
from agentrl.tools.base import Environment, Tool, ToolResult, tool
from agentrl.types.episode import Episode, in_order
from agentrl.types.errors import EngineError, RecipeError
from agentrl.types.sample import training_samples
from agentrl.types.trajectory import Trajectory
from tests.clock import Clock
from tests.rollouts.world import collect, make_context, make_parts, specs

HERE = "tests.rollouts.test_forks"


class Counter(Tool):
    """Its calls have to run again."""

    made: list[Counter] = []

    def open(self, task: Any, sandbox: Any) -> None:
        self.at, self.turned = 0, 0
        self.made.append(self)

    @tool
    def turn(self, by: int) -> ToolResult:
        """Turn it."""
        self.at += by
        self.turned += 1
        return ToolResult(f"at {self.at}", done=self.at >= 6)

    def state_key(self) -> str:
        return str(self.at)


class Dial(Counter, Environment):
    """Saves and restores."""

    made: list[Counter] = []

    def save(self) -> Any:
        return {"at": self.at}

    def restore(self, state: Any) -> None:
        self.at = state["at"]


class Fickle(Counter):
    """Its results differ from time to time."""

    @tool
    def turn(self, by: int) -> str:
        """Turn it."""
        return f"call {len(Counter.made)}"


class Slow(Counter):
    """Its state is new before its result is there."""

    @tool
    async def turn(self, by: int) -> str:
        """Turn it."""
        self.at += by
        await asyncio.Event().wait()
        return f"at {self.at}"


class Outside(Counter):
    """Sends mails."""

    forkable = False


def turner(task: Any, rng: Any) -> Any:
    """Turns by a random number, the episode's own."""
    while True:
        yield Say(calls=[("turn", {"by": rng.randint(1, 2)})])


class Forks(ToolAgent):
    """Plays to the end, and then again from some turns."""

    forks = 4
    at: tuple[int | None, ...] = (1, 2)

    async def run(self, session: Any) -> None:
        await super().run(session)
        for turn in self.at:
            async with session.fork(turn) as fork:
                await ToolAgent.run(self, fork)


async def reached(task: Any, episode: Episode) -> float:
    said = [each["content"] for turn in episode.turns for each in turn.observations]
    return float(said[-1].split()[-1]) if said and said[-1].startswith("at") else 0.0


def context(tmp_path: Path, agent: Any = "Forks", tools: str = "Dial", **recipe: Any) -> RolloutContext:
    Dial.made.clear()
    Counter.made.clear()
    recipe = {"rewards": {"reached": f"{HERE}:reached"}, **recipe}
    parts = make_parts(
        tmp_path, agent=agent if isinstance(agent, dict) else {"use": f"{HERE}:{agent}"}, tools=[f"{HERE}:{tools}"],
        **recipe,
    )  # fmt: skip
    return replace(make_context(parts, turner), states=StateRule())


def rollouts(n: int = 1) -> list[Any]:
    return [replace(each, split="rollout") for each in specs(n)]


async def tree(tmp_path: Path, **more: Any) -> list[Episode]:
    """The episode and its forks, stored and checked."""
    with RunDir.create(tmp_path / "run") as run:
        await collect(context(tmp_path, **more), rollouts(), run=run)
        episodes = in_order(run.episodes())
    assert (report := check(tmp_path / "run")).ok, report.as_text()
    return episodes


@pytest.mark.parametrize("tools", ["Dial", "Counter"])
async def test_a_fork_is_an_episode_of_the_group_that_begins_as_its_parent(tmp_path: Path, tools: str) -> None:
    trunk, *forks = await tree(tmp_path, tools=tools)
    assert [each.id for each in forks] == [f"{trunk.id}.1", f"{trunk.id}.2"]
    for fork, turn in zip(forks, (1, 2), strict=True):
        assert (fork.group_id, fork.split, fork.iteration) == (trunk.group_id, "rollout", trunk.iteration)
        assert fork.parent is not None
        assert (fork.parent.run, fork.parent.episode, fork.taken) == ("", trunk.id, turn)
        mine, its = fork.turns[turn], trunk.turns[turn]
        assert (mine.state, mine.saved) == (its.state, its.saved)
        assert Trajectory(fork.nodes).before(mine.node) == Trajectory(trunk.nodes).before(its.node)
        assert [fork.trained(each) > 0 for each in fork.turns] == [each.index >= turn for each in fork.turns]
        assert fork.reward == float(fork.turns[-1].observations[-1]["content"].split()[-1])
    samples = [row for each in (trunk, *forks) for row in training_samples(each, [1.0] * len(each.turns))]
    assert sum(int(row.loss_mask.sum()) for row in samples) == sum(each.sampled_tokens for each in (trunk, *forks))
    assert sum(row.sampled_tokens for row in Run(tmp_path / "run").turns) == sum(
        each.sampled_tokens for each in (trunk, *forks)
    )
    for each in (trunk, *forks):  # what is scored for its length is as long as if nothing had been forked
        replies = sum(len(each.nodes[turn.node].token_ids) for turn in each.turns)
        assert each.reply_tokens == replies
        assert spent(each, {}, per_token=1.0) == replies
        assert (overlong(each, max_tokens=replies, buffer=1), overlong(each, max_tokens=replies + 1, buffer=1)) == (
            -1,
            0,
        )
    made = Dial.made or Counter.made
    ran = [each.turned for each in made]
    lengths = [len(each.turns) - (each.taken if tools == "Dial" else 0) for each in (trunk, *forks)]
    assert ran == lengths, "restored, or run again"


class Now(ToolAgent):
    """Forks between a reply and its calls, and again after them, with a hint."""

    forks = 2

    async def run(self, session: Any) -> None:
        await self.take_turn(session)
        reply = await session.generate()
        async with session.fork() as fork:
            await fork.run_tools(reply)
            fork.finish("answer", fork.messages[-1]["content"])
        await session.run_tools(reply)
        async with session.fork() as fork:
            fork.say("A hint.")
            await fork.generate()
            fork.finish()
        session.finish("answer", session.messages[-1]["content"])


@pytest.mark.parametrize("tools", ["Dial", "Counter"])
async def test_a_fork_goes_on_from_here(tmp_path: Path, tools: str) -> None:
    trunk, first, second = await tree(tmp_path, agent="Now", tools=tools)
    assert (first.taken, second.taken) == (2, 2)
    assert first.answer == trunk.answer, "the same call, in the same state"
    assert [each["content"] for each in second.turns[1].observations][1:] == ["A hint."]
    assert second.turns[2].state == str(sum(each.calls[0].arguments["by"] for each in trunk.turns if each.calls))


class Grows(ToolAgent):
    """Forks a fork, and two more side by side."""

    forks = 4

    async def run(self, session: Any) -> None:
        await super().run(session)
        async with session.fork(1) as child:
            await ToolAgent.run(self, child)
            async with child.fork(2) as grandchild:
                await ToolAgent.run(self, grandchild)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(child, 2))  # its block has ended
            group.create_task(self._again(session, 0))

    async def _again(self, session: Any, turn: int) -> None:
        async with session.fork(turn) as fork:
            await ToolAgent.run(self, fork)


async def test_forks_of_forks_and_side_by_side(tmp_path: Path) -> None:
    _, *forks = await tree(tmp_path, agent="Grows")
    assert [each.id.rpartition(".")[2] for each in forks] == ["1", "2", "3", "4"]
    found = [(each.parent.episode.rpartition("#")[2], each.parent.turn) for each in forks if each.parent]
    assert found == [("0", 1), ("0.1", 2), ("0.1", 2), ("0", 0)]
    seeds = [each.parent.seeds for each in forks if each.parent]
    assert seeds[1] == [*seeds[0], (1, seeds[1][1][1])]


class Long(Dial):
    """Its end is far."""

    @tool
    def turn(self, by: int) -> str:
        """Turn it."""
        self.at += by
        return f"at {self.at}"


class Limited(Forks):
    """Its forks reach the limit of turns, and what follows them still runs."""

    at = (1,)

    async def run(self, session: Any) -> None:
        await self.take_turn(session)
        await self.take_turn(session)
        for turn in self.at:
            async with session.fork(turn) as fork:
                await ToolAgent.run(self, fork)
        session.finish("answer", "over")


async def test_a_limit_ends_the_fork_alone(tmp_path: Path) -> None:
    trunk, fork = await tree(tmp_path, agent={"use": f"{HERE}:Limited", "max_turns": 3}, tools="Long")
    assert (trunk.status, trunk.answer, trunk.stop) == ("done", "over", "answer")
    assert (fork.status, fork.stop, len(fork.turns)) == ("truncated", "turns", 3)


class Frail(Long):
    """Forgets its state when it is closed."""

    def close(self) -> None:
        self.at = -99


class Afterwards(Forks):
    """Goes on from the end of a fork whose block has ended."""

    async def run(self, session: Any) -> None:
        await self.take_turn(session)
        async with session.fork() as fork:
            await self.take_turn(fork)
        async with fork.fork() as second:
            await self.take_turn(second)
        session.finish()


async def test_a_fork_of_a_closed_one_goes_on_from_its_state(tmp_path: Path) -> None:
    _, _, second = await tree(tmp_path, agent="Afterwards", tools="Frail")
    assert second.turns[2].state == str(sum(turn.calls[0].arguments["by"] for turn in second.turns[:2]))


class Tasks(Limited):
    """The limit of its fork comes out of a TaskGroup."""

    async def run(self, session: Any) -> None:
        await self.take_turn(session)
        async with session.fork(1) as fork, asyncio.TaskGroup() as group:
            group.create_task(ToolAgent.run(self, fork))
        session.finish("answer", "over")


async def test_a_limit_in_a_task_of_the_fork_ends_the_fork_alone(tmp_path: Path) -> None:
    trunk, fork = await tree(tmp_path, agent={"use": f"{HERE}:Tasks", "max_turns": 3}, tools="Long")
    assert (trunk.status, trunk.answer) == ("done", "over")
    assert (fork.status, fork.stop, len(fork.turns)) == ("truncated", "turns", 3)


class Late(Limited):
    """Reaches a limit itself, inside the block of a fork."""

    async def run(self, session: Any) -> None:
        await self.take_turn(session)
        async with session.fork(0):
            while True:
                await self.take_turn(session)


async def test_a_limit_of_the_parent_ends_the_parent(tmp_path: Path) -> None:
    (trunk,) = await tree(tmp_path, agent={"use": f"{HERE}:Late", "max_turns": 3}, tools="Long")
    assert (trunk.status, trunk.stop, len(trunk.turns)) == ("truncated", "turns", 3)


class Wall(Forks):
    """Its fork waits for longer than an episode may take; its own clock stands still meanwhile."""

    clock: Clock

    async def run(self, session: Any) -> None:
        await ToolAgent.run(self, session)
        async with session.fork(1):
            await self.too_long()

    async def too_long(self) -> None:
        self.clock.forward(601)
        await asyncio.Event().wait()


async def test_the_wall_ends_the_fork_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Wall, "clock", Clock(monkeypatch), raising=False)
    trunk, fork = await tree(tmp_path, agent="Wall", limits={"episode_s": 600})
    assert (trunk.status, trunk.stop, fork.status, fork.stop) == ("done", "tool", "truncated", "wall")


class Deep(Wall):
    """The fork of a fork of a fork takes longer than an episode may; the blocks around it are open meanwhile."""

    async def run(self, session: Any) -> None:
        await ToolAgent.run(self, session)
        async with session.fork(1) as child:
            await ToolAgent.run(self, child)
            async with child.fork(1) as second:
                await ToolAgent.run(self, second)
            async with second.fork(1):
                await self.too_long()


async def test_the_clocks_of_all_that_it_was_forked_from_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wall, "clock", Clock(monkeypatch), raising=False)
    found = await tree(tmp_path, agent="Deep", limits={"episode_s": 600})
    assert [each.stop for each in found] == ["tool", "tool", "tool", "wall"]


class Rewarding(Forks):
    """Rewards its first turns itself, and reward functions give some, too; forks a fork whose block has ended."""

    async def run(self, session: Any) -> None:
        for _ in range(2):
            await self.take_turn(session)
            session.reward(mine=1.0)
        async with session.fork(2) as fork:
            await ToolAgent.run(self, fork)
        async with fork.fork(2) as second:
            assert [turn.rewards for turn in second.turns] == [{"mine": 1.0}] * 2
            await ToolAgent.run(self, second)


async def numbers(task: Any, episode: Episode) -> list[float]:
    return [float(turn.index) for turn in episode.turns]


@pytest.mark.parametrize("tools", ["Dial", "Counter"])
async def test_a_fork_takes_the_rewards_that_the_agent_gave(tmp_path: Path, tools: str) -> None:
    rewards = {"number": f"{HERE}:numbers"}
    for each in await tree(tmp_path, agent="Rewarding", tools=tools, rewards=rewards):
        given = [{"mine": 1.0, "number": 0.0}, {"mine": 1.0, "number": 1.0}]
        assert [turn.rewards for turn in each.turns[:2]] == given


class Rewrites(Forks):
    """Says more after the context was replaced, and calls what the reply before that had asked for."""

    async def run(self, session: Any) -> None:
        reply = await session.generate()
        session.rewrite([*session.messages[:1], {"role": "user", "content": "So far."}], reason="summary")
        await session.run_tools(reply)
        session.say("Go on.")
        await self.take_turn(session)
        session.finish()
        async with session.fork(1) as fork:
            await self.take_turn(fork)
            fork.finish()


@pytest.mark.parametrize("tools", ["Dial", "Counter"])
async def test_a_fork_takes_what_was_said_after_the_context_was_replaced(tmp_path: Path, tools: str) -> None:
    trunk, fork = await tree(tmp_path, agent="Rewrites", tools=tools)
    mine, its = (Trajectory(each.nodes).before(each.turns[1].node) for each in (fork, trunk))
    assert mine == its
    assert fork.branches == trunk.branches
    (branch,) = trunk.branches
    assert [each["content"].split()[0] for each in branch.messages or []][1:] == ["So", "at", "Go"]


class Breaks(Forks):
    """The first fork is whole; an error follows in the second."""

    error: BaseException = EngineError("away")

    async def run(self, session: Any) -> None:
        await ToolAgent.run(self, session)
        async with session.fork(1) as fork:
            await ToolAgent.run(self, fork)
        async with session.fork(1):
            raise self.error


@pytest.mark.parametrize(("error", "status"), [(EngineError("away"), "infra_error"), (KeyError("x"), "user_error")])
async def test_an_error_in_a_fork_is_that_of_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    """None of its forks is data, and the whole is tried again where that helps."""
    monkeypatch.setattr(Breaks, "error", error)
    (trunk,) = await tree(tmp_path, agent="Breaks", limits={"retries": 1, "backoff_s": 0.0})
    assert (trunk.status, trunk.attempt) == (status, int(status == "infra_error"))


class Meanwhile(ToolAgent):
    """Forks while a tool runs."""

    forks = 1

    async def run(self, session: Any) -> None:
        reply = await session.generate()
        async with asyncio.TaskGroup() as group:
            group.create_task(session.run_tools(reply))
            await asyncio.sleep(0)
            async with session.fork():
                pass


async def test_no_fork_goes_on_from_the_midst_of_a_call(tmp_path: Path) -> None:
    (trunk,) = await tree(tmp_path, agent="Meanwhile", tools="Slow")
    assert trunk.error is not None
    assert "run_tools() is under way" in trunk.error.traceback


@pytest.mark.parametrize(
    ("agent", "tools", "split", "said"),
    [
        ({"at": (99,)}, "Dial", "rollout", "there is no turn 99"),
        ({"at": (1, 2, 3, 4, 5)}, "Dial", "rollout", "may fork an episode 4 times"),
        ({}, "Dial", "eval", "a demonstration or a resumed episode is not forked"),
        ({}, "Fickle", "rollout", "turn 0, call 0, turn(by="),
    ],
)
async def test_what_cannot_be_forked_is_refused_with_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: dict[str, Any], tools: str, split: str, said: str
) -> None:
    for name, value in agent.items():
        monkeypatch.setattr(Forks, name, value)
    made = context(tmp_path, tools=tools, agent="Limited" if tools == "Fickle" else "Forks")
    (episode,) = await collect(made, [replace(each, split=split) for each in specs(1)])
    assert episode.status == "user_error"
    assert episode.error is not None
    assert said in episode.error.message
    assert "task 't0', episode g0#0" in episode.error.message
    assert "remedy" in episode.error.message.lower() or "->" in episode.error.message


def test_a_recipe_that_forks_what_cannot_be_forked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="Outside cannot be forked") as refused:
        context(tmp_path, tools="Outside")
    assert refused.value.place == "tools.0"


async def test_a_tree_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    episodes = await tree(tmp_path)
    (shard,) = (tmp_path / "run" / "episodes").iterdir()
    shard.write_bytes(shard.read_bytes()[:-5])  # killed while it was written
    (tmp_path / "run" / "index.sqlite").unlink()
    with RunDir.open(tmp_path / "run") as run:
        assert run.ids() == set()
        run.add(*episodes)
    with RunDir.read(tmp_path / "run") as run:
        assert {each.id: each for each in run.episodes()} == {each.id: each for each in episodes}
        assert run.get(episodes[1].id) == episodes[1]
    assert check(tmp_path / "run").ok


async def test_credit_reads_the_tree(tmp_path: Path) -> None:
    """Turns that all have taken get no credit of their own; where they part, each gets what its way was worth."""
    trunk, first, second = await tree(tmp_path)
    scored = [
        msgspec.structs.replace(each, reward=reward) for each, reward in ((trunk, 1.0), (first, 0.0), (second, 1.0))
    ]
    credit = load_credit(CreditSettings(use="tempo"))
    found = {each.episode_id: each.parts["branch"] for each in credit.assign(scored)[0]}
    assert found[trunk.id][0] == 0.0, "all three begin with it"
    assert found[trunk.id][1] > 0 > found[first.id][1], "one of the two that went this way failed, the other did not"
    assert found[second.id][: second.taken] == [0.0] * second.taken, "its parent has it"


async def test_turns_that_a_fork_took_have_the_origin_of_its_parents(tmp_path: Path) -> None:
    episodes = await tree(tmp_path)
    rewarded = [msgspec.structs.replace(each, reward=0.0) for each in episodes]
    table = CreditTable.from_episodes(rewarded)
    assert table.origin is not None
    trunk, *forks = np.split(table.origin, table.offsets[1:-1])
    known = {episodes[0].id: trunk}
    for episode, origin in zip(episodes[1:], forks, strict=True):
        assert episode.parent is not None
        parents = known[episode.parent.episode]
        assert origin[: episode.taken].tolist() == parents[: episode.taken].tolist()
        assert not set(origin[episode.taken :]) & {each for found in known.values() for each in found.tolist()}
        known[episode.id] = origin


class Scoring(ScriptedEngine):
    """A policy whose belief in the gold answer grows with the prompt."""

    async def score(self, prefix: Any, continuations: Any, at: Any = None) -> list[list[float]]:
        return [[-100.0 / start] * len(said) for start, said in zip(at, continuations, strict=True)]


async def test_the_gold_answer_is_scored_before_turns_that_were_taken(tmp_path: Path) -> None:
    parts = make_parts(
        tmp_path, agent=f"{HERE}:Forks", tools=[f"{HERE}:Dial"], rewards={"reached": f"{HERE}:reached"}, credit="igpo"
    )
    played = replace(make_context(parts, turner, Scoring), answer_scorer=parts.answer_scorer)
    trunk, *forks = in_order(await collect(played, rollouts()))
    for fork in forks:
        same = fork.taken + 1
        assert [turn.gold_logprob for turn in fork.turns][:same] == [turn.gold_logprob for turn in trunk.turns][:same]
    assert len(load_credit(parts.recipe.credit).assign([trunk, *forks])[0]) == 3


async def test_a_replay_forks_again(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "run", {"recipe": {}}) as run:
        await collect(context(tmp_path), rollouts(), run=run)
        engine: Any = ReplayEngine(run)
        again = await collect(replace(context(tmp_path), engine=engine), rollouts())
        stored = {each.id: each for each in run.episodes()}
    assert [each.id for each in again] == ["g0#0.1", "g0#0.2", "g0#0"]
    assert all(each.nodes == stored[each.id].nodes for each in again)


async def test_workers_send_forks(tmp_path: Path) -> None:
    parts = make_parts(
        tmp_path, agent=f"{HERE}:Forks", tools=[f"{HERE}:Dial"], scripts={"turner": f"{HERE}:turner"},
        scale={"rollout_workers": 1},
    )  # fmt: skip
    engine, renderer = parts.scripted_engine("turner")
    async with open_runners(parts) as runners:
        (spec,) = rollouts()
        tree = await runners.for_context(parts.context(engine, renderer, None)).play(spec)
    assert [each.id for each in tree] == ["g0#0.1", "g0#0.2", "g0#0"]


async def test_check_compares_a_fork_with_its_parent(tmp_path: Path) -> None:
    trunk, _, fork = await tree(tmp_path)
    line = msgspec.json.encode(fork).decode()
    for number, part in enumerate(('"saved":[{"at":', '"content":"at ')):
        wrong, out = line.replace(part, f"{part}1", 1), tmp_path / str(number)
        with RunDir.create(out) as run:
            run.add(msgspec.convert(json.loads(wrong), Episode), trunk)
        assert check(out).invariants["forks"].failed == 1
