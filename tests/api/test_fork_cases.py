"""Forks of episodes in which something is unusual: what is silent, slow, concurrent, seen or drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.api.forks.fork import fork
from agentrl.api.rollout import rollout
from agentrl.api.run import Run
from agentrl.api.run_dirs import EpisodesMissing, require_whole
from agentrl.store.check import check
from agentrl.types.episode import Episode
from tests.images import png

CODE = '''
import asyncio
from pathlib import Path
from agentrl import Agent, Environment, Say, Task, Tool, ToolAgent, ToolResult, tool

HERE = Path(__file__).parent

def counts(n=2):
    for k in range(n):
        yield Task.of(f"t{k}", "Count.")

def pictures(n=2):
    for k in range(n):
        yield Task.of(f"t{k}", [{"role": "user", "content": [{"type": "image", "image": PICTURE}, "What is it?"]}])

class Counter(Tool):
    async def open(self, task, sandbox):
        self.count = 0
    @tool
    async def add(self) -> ToolResult:
        "Count on."
        await asyncio.sleep(60 * (HERE / "waits").exists())
        self.count += 1 + (HERE / "skips").exists()
        return ToolResult(str(self.count), done=self.count >= 6, rewards={"step": 0.5})

class Saved(Counter, Environment):
    def save(self):
        return self.count
    def restore(self, state):
        self.count = state

class Shown(Saved):
    @tool
    async def add(self) -> ToolResult:
        "Count on."
        self.count += 1
        return ToolResult("Now:", done=self.count >= 6, images=[SCREENS[self.count]])

class Grows(Saved):
    def tools(self):
        return [self.add] if self.count < 1 else [self.add, self.leap]
    @tool
    def leap(self) -> str:
        "Leap."
        return "far"

class Quiet(Saved):
    def respond(self, reply):
        self.count += 1
        return "Twice." if self.count == 2 else None

class Slowly(Saved):
    async def save(self):
        self.asked = getattr(self, "asked", 0) + 1
        for _ in range(1000 * (self.asked == 1)):  # in so many turns of the event loop others come first
            await asyncio.sleep(0)
        return 0

class Twice(Saved):
    info = {"restored": 0}
    async def restore(self, state):
        for _ in range(1000):  # others come first
            await asyncio.sleep(0)
        self.info["restored"] += 1

class Pays(ToolAgent):
    async def run(self, session):
        while session.outcome is None:
            await session.run_tools(await session.generate())
            session.reward(shaped=1.0)

class Moody(ToolAgent):
    async def run(self, session):
        while session.outcome is None:
            await session.run_tools(await session.generate())
            session.say(f"mood {session.rng.random()}")

class Nags(Agent):
    """Speaks where the environment is silent."""
    async def run(self, session):
        own = 0
        for _ in range(5):
            if await session.respond(await session.generate()) is None:
                own += 1
                session.say("Go on.")
        session.finish("answer", str(own))

class Beside(ToolAgent):
    """A critic speaks before the reply that began first."""
    async def run(self, session):
        critic = session.context("critic", [{"role": "user", "content": "Criticise."}], tools=[])
        await asyncio.gather(session.generate(), critic.generate())
        session.finish("answer", "x")

def one(task, episode):
    return 1.0

def slow(task, rng):
    while True:
        yield Say(calls=[("add", {})])

def chatty(task, rng):
    while True:
        yield Say(f"hello {rng.randint(0, 99)}")
'''

RECIPE = """\
name: counting
tasks: ./task.py:%s
tools: [./task.py:%s]
agent: {use: %s}
rewards: {one: ./task.py:one, tool_reward: {}}
scripts: {slow: ./task.py:slow, chatty: ./task.py:chatty}
"""


SCREENS = [png(colour=(k, 0, 0)) for k in range(7)]


def play(tmp_path: Path, tool: str, agent: str = "tool_agent", script: str = "slow", tasks: str = "counts") -> Run:
    (tmp_path / "task.py").write_text(CODE.replace("PICTURE", repr(png(8, 6))) + f"\nSCREENS = {SCREENS!r}\n")
    use = agent if agent.startswith("tool_agent") else f"./task.py:{agent}"
    (tmp_path / "recipe.yaml").write_text(RECIPE % (tasks, tool, use))
    return rollout(tmp_path, 1, script=script, out=tmp_path / "run", reporters=())


def forked(run: Run, turn: int, out: str = "forks", **more: Any) -> tuple[Run, Episode]:
    made = fork(run, "t0#0", turn, 1, out=run.path.with_name(out), reporters=(), **more)
    report = check(made.path)
    assert report.ok, report.as_text()
    (episode,) = made.whole_episodes()
    return made, episode


def test_rewards_of_the_agent_are_given_once(tmp_path: Path) -> None:
    _, each = forked(play(tmp_path, "Saved", "Pays"), 3)
    assert [turn.rewards["shaped"] for turn in each.turns] == [1.0] * 6


@pytest.mark.slow
def test_what_the_agent_said_is_not_taken_for_the_environment(tmp_path: Path) -> None:
    run = play(tmp_path, "Quiet", "Nags", "chatty")
    (parent,) = run.whole_episodes()
    made, child = forked(run, 3)
    _, grandchild = forked(made, 4, "again")
    for each in (parent, child, grandchild):
        assert each.answer == "4"
        assert [turn.heard for turn in each.turns] == [None, 0, None, None, None]


def test_tools_that_change_run_again(tmp_path: Path) -> None:
    run = play(tmp_path, "Grows")
    (parent,) = run.whole_episodes()
    _, each = forked(run, 3)
    assert (
        [(b.turn, b.reason) for b in each.branches] == [(b.turn, b.reason) for b in parent.branches] == [(1, "tools")]
    )
    assert [turn.tools for turn in each.turns] == [turn.tools for turn in parent.turns]


def test_tokens_of_other_contexts_do_not_come_along(tmp_path: Path) -> None:
    run = play(tmp_path, "Slowly", "Beside")
    (parent,) = run.whole_episodes()
    assert [(turn.context, turn.node) for turn in parent.turns] == [("main", 3), ("critic", 2)]
    _, each = forked(run, 0)
    assert {node for turn in each.turns for node in each.path(turn.node)} == set(range(len(each.nodes)))


def test_tools_are_restored_once_where_two_conversations_go_on_at_the_same_time(tmp_path: Path) -> None:
    _, each = forked(play(tmp_path, "Twice", "Beside"), 0)
    assert each.info == {"restored": 1}
    assert len(each.turns) == 2


def test_a_task_with_images(tmp_path: Path) -> None:
    run = play(tmp_path, "Counter", script="chatty", tasks="pictures")
    made, each = forked(run, 0)
    assert each.status == "done"
    (image,) = [part for part in each.task.instruction[0]["content"] if "blob" in part]
    assert made.dir.get_blob(image["blob"]) == png(8, 6)


def test_a_fork_of_a_fork_draws_what_its_parents_drew(tmp_path: Path) -> None:
    made, child = forked(play(tmp_path, "Counter", "Moody"), 2)
    _, grandchild = forked(made, 4, "again")
    moods = [[turn.observations[-1]["content"] for turn in each.turns] for each in (child, grandchild)]
    assert moods[0][:4] == moods[1][:4]
    assert moods[0][4] != moods[1][4]


@pytest.mark.parametrize(
    ("change", "said", "episode_s"),
    [("waits", "playing back the turns before the fork took too long", 0.5), ("skips", "recorded is '1'", 600)],
)
def test_a_playback_that_fails_is_not_scored_and_whole(
    tmp_path: Path, change: str, said: str, episode_s: float
) -> None:
    run = play(tmp_path, "Counter", "Moody")
    (tmp_path / change).touch()
    out = tmp_path / "forks"
    with pytest.raises(EpisodesMissing, match=said):
        made = fork(run, "t0#0", 3, 1, out=out, reporters=(), overrides={"limits.episode_s": episode_s})
        require_whole(made.path)
    report = check(out)
    assert report.ok, report.as_text()


def test_a_fork_shows_the_last_images_alone(tmp_path: Path) -> None:
    run = play(tmp_path, "Shown", "tool_agent, history: {last_images: 2}", tasks="pictures")
    (parent,) = run.whole_episodes()
    assert [branch.turn for branch in parent.branches] == [3, 4, 5]
    for turn in (2, 4):
        _, child = forked(run, turn, f"forks-{turn}")
        assert (child.branches, child.taken) == (parent.branches, turn)
        assert list(map(prompt(child), child.turns)) == list(map(prompt(parent), parent.turns))


def prompt(episode: Episode) -> Any:
    """The tokens before a turn of the episode."""
    return lambda turn: [token for node in episode.path(turn.node)[:-1] for token in episode.nodes[node].token_ids]
