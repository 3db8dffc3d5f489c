"""Stored episodes, resumed from their turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.credit import credit
from agentrl.api.forks.fork import fork
from agentrl.api.forks.probe import probe, values_of
from agentrl.api.rollout import rollout
from agentrl.api.run import Run
from agentrl.api.run_dirs import EpisodesMissing, require_whole
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError
from agentrl.types.sample import training_samples
from tests.sound import assert_sound

CODE = '''
from pathlib import Path
from agentrl import Agent, Environment, Say, Task, Tool, ToolAgent, ToolResult, tool

HERE = Path(__file__).parent

def counts(n=8):
    for k in range(n):
        yield Task.of(f"count{k}", f"Count to {k % 5 + 3}.", to=k % 5 + 3)

class Counter(Tool):
    async def open(self, task, sandbox):
        self.count, self.to, self.ran = 0, task.data["to"], 0
    @tool
    async def add(self, by: int = 1) -> ToolResult:
        "Count on."
        self.ran += 1
        self.count += by + (HERE / "skips").exists()
        done = self.count >= self.to or (HERE / "stops").exists()
        return ToolResult(str(self.count), done=done, rewards={"step": 0.5})
    def state_key(self):
        return str(self.count)

class Saved(Counter, Environment):
    def save(self):
        return {"count": self.count}
    async def restore(self, state):
        self.count = state["count"]

class Talks(Environment):
    info = {}
    async def open(self, task, sandbox):
        self.said, self.info = 0, {"answered": 0}
    async def opening(self):
        return "Talk to me."
    async def respond(self, reply):
        self.said += 1
        self.info["answered"] += 1
        return None if self.said == 5 else f"That was {self.said}."

class SavedTalks(Talks):
    async def save(self):
        return self.said
    def restore(self, state):
        self.said = state

class Moody(ToolAgent):
    """Says a random number after every reply."""
    async def run(self, session):
        while session.outcome is None:
            reply = await session.generate()
            await session.run_tools(reply)
            session.say(f"mood {session.rng.random()}")

class Forgets(ToolAgent):
    """Begins a new context after every second turn."""
    async def run(self, session):
        while session.outcome is None:
            await session.run_tools(await session.generate())
            if len(session.turns) % 2 == 0:
                session.rewrite([{"role": "user", "content": f"Go on from turn {len(session.turns)}."}])

def exact(task, episode, tools):
    return float(getattr(tools[0], "count", 0) == task.data["to"])

def ran(task, episode, tools):
    return float(getattr(tools[0], "ran", 0))

def hasty(task, rng):
    while True:
        yield Say(calls=[("add", {"by": rng.randint(1, 3)})])

def slow(task, rng):
    while True:
        yield Say(calls=[("add", {"by": 1})])

def chatty(task, rng):
    while True:
        yield Say(f"hello {rng.randint(0, 99)}")
'''

RECIPE = """\
name: counting
tasks: ./task.py:counts
tools: [./task.py:%s]
rewards: {exact: ./task.py:exact, ran: {use: ./task.py:ran, weight: 0}, tool_reward: {}}
scripts: {hasty: ./task.py:hasty, slow: ./task.py:slow, chatty: ./task.py:chatty}
credit: {use: gigpo}
"""

Play = Callable[..., Run]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Plays episodes of the counting recipe."""

    def play(tool: str = "Counter", script: str = "slow", **overrides: Any) -> Run:
        (tmp_path / "task.py").write_text(CODE)
        (tmp_path / "recipe.yaml").write_text(RECIPE % tool)
        return rollout(
            tmp_path, 8, group_size=2, script=script, overrides=overrides, out=tmp_path / "run", reporters=()
        )

    return play


def forked(run: Run, turn: int, n: int = 4, name: str = "count1#0", **more: Any) -> list[Episode]:
    out = run.path.with_name("forks")
    found = fork(run, name, turn, n, out=out, reporters=(), **more)
    require_whole(found.path)
    assert_sound(out)
    return list(found.whole_episodes())


def same_prefix(parent: Episode, each: Episode, turn: int) -> None:
    end = parent.turns[turn].node
    assert [node.token_ids for node in each.nodes[:end]] == [node.token_ids for node in parent.nodes[:end]]
    assert [node.parent for node in each.nodes[: end + 1]] == [node.parent for node in parent.nodes[: end + 1]]
    assert not [node for node in each.nodes[:end] if node.kind == "sampled"]
    assert each.nodes[end].kind == "sampled"
    said = [(turn.text, turn.observations, turn.state) for turn in parent.turns[:turn]]
    assert [(turn.text, turn.observations, turn.state) for turn in each.turns[:turn]] == said


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_the_calls_before_the_turn_run_again(play: Play, turn: int) -> None:
    run = play()
    parent = run.episode("count1#0")
    for each in forked(run, turn):
        same_prefix(parent, each, turn)
        assert each.components["ran"] == len(parent.turns), "all calls ran"
        assert each.components["exact"] == 1.0
        assert [t.rewards["step"] for t in each.turns] == [0.5] * len(each.turns)
        assert each.parent is not None
        assert (each.parent.run, each.parent.episode, each.parent.turn) == (run.dir.id, parent.id, turn)


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_saved_states_are_restored(play: Play, turn: int) -> None:
    run = play("Saved")
    parent = run.episode("count1#0")
    assert [t.saved for t in parent.turns] == [[{"count": k}] for k in range(len(parent.turns))]
    for each in forked(run, turn):
        same_prefix(parent, each, turn)
        assert each.components["ran"] == len(parent.turns) - turn, "only the calls from the turn on ran"
        assert each.components["exact"] == 1.0
        assert [t.rewards["step"] for t in each.turns] == [0.5] * len(each.turns)
        assert [t.saved for t in each.turns] == [t.saved for t in parent.turns]


@pytest.mark.parametrize(("tool", "answered"), [("Talks", 5), ("SavedTalks", 3)])
def test_an_environment_with_a_voice(play: Play, tool: str, answered: int) -> None:
    run = play(tool, "chatty")
    parent = run.episode("count1#0")
    assert len(parent.turns) == 5
    for each in forked(run, 2):
        same_prefix(parent, each, 2)
        assert len(each.turns) == 5
        assert each.info == {"answered": answered}
        assert each.turns[3].observations[0]["content"] == "That was 4."


def test_an_agent_that_draws_numbers_and_one_that_begins_new_contexts(play: Play) -> None:
    run = play(script="slow", **{"agent.use": "./task.py:Moody"})
    parent = run.episode("count1#0")
    forks = forked(run, 2)
    for each in forks:
        same_prefix(parent, each, 2)
    assert len({each.turns[2].observations[-1]["content"] for each in forks}) == 4, "from there on each draws its own"


def test_branches_are_kept(play: Play) -> None:
    run = play(script="slow", **{"agent.use": "./task.py:Forgets"})
    parent = run.episode("count2#0")
    assert [branch.turn for branch in parent.branches] == [2, 4]
    for turn in (2, 3):
        for each in forked(run, turn, name="count2#0", n=turn):
            same_prefix(parent, each, turn)
            assert each.branches == parent.branches
        for path in sorted(run.path.with_name("forks").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()


def test_what_was_taken_is_not_trained(play: Play) -> None:
    run = play(script="hasty")
    parent = max(run.whole_episodes(), key=lambda e: len(e.turns))
    forks = forked(run, 1, 6, parent.id)
    for each in forks:
        rows = training_samples(each, [1.0] * len(each.turns))
        assert [turn for row in rows for turn, _, _ in row.turn_spans] == [t.index for t in each.turns[1:]]
        assert (each.trained(each.turns[0]), each.taken) == (0, 1)
    assert len({tuple(t.text for t in each.turns) for each in forks}) > 1
    made = Run(run.path.with_name("forks"))
    for estimator in ("grpo", "gigpo", "tempo", "salt", "reinforce_pp", "treepo", "mt_grpo"):
        credits = credit(made, estimator).credits
        assert len(credits) == 6
        for one in credits:
            if one.token_advantages is not None:
                assert len(one.token_advantages) == made.episode(one.episode_id).sampled_tokens


def test_a_fork_of_a_fork_goes_on_only_where_it_must(play: Play) -> None:
    run = play()
    forked(run, 1)
    made = Run(run.path.with_name("forks"))
    child = next(made.whole_episodes())
    again = fork(made, child.id, 2, 2, out=run.path.with_name("again"), reporters=())
    for each in again.whole_episodes():
        same_prefix(child, each, 2)
    before = [e.created_at for e in again.whole_episodes()]
    fork(made, child.id, 2, 2, out=run.path.with_name("again"), reporters=())
    assert [e.created_at for e in again.whole_episodes()] == before


@pytest.mark.parametrize(
    ("name", "turn", "more", "said", "remedy"),
    [
        ("count1#0", 99, {}, "there is no turn 99: its turns are 0 to 3", "agentrl show"),
        ("count1#0", -1, {}, "there is no turn -1", "agentrl show"),
        ("nobody", 0, {}, "no episode 'nobody'", "agentrl show"),
        ("count1#0", 1, {"script": "nobody"}, "no script 'nobody'", "slow"),
        ("count1#0", 1, {"overrides": {"agent.max_turns": 1}}, "agent.max_turns is 1", "agent.max_turns=2"),
    ],
)
def test_what_is_refused(play: Play, name: str, turn: int, more: dict[str, Any], said: str, remedy: str) -> None:
    with pytest.raises(AgentRLError) as refused:
        forked(play(), turn, name=name, **more)
    assert said in refused.value.message
    assert remedy in (refused.value.remedy or "")
    if said.startswith("there is no turn"):
        assert "count1#0" in (refused.value.place or "")


def test_changed_code_is_refused_unless_asked_for(play: Play, tmp_path: Path) -> None:
    run = play()
    (tmp_path / "task.py").write_text(CODE + "\n# changed\n")
    with pytest.raises(AgentRLError, match="task.py in .* changed since the run") as refused:
        forked(run, 1)
    assert "--changed-code" in (refused.value.remedy or "")
    assert len(forked(run, 1, changed_code=True)) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("skips", "turn 0, call 0, add(by=1): recorded is '1', and played back '2'"),
        ("stops", "the agent: recorded is '3 turns or more', and played back '1 turns'"),
    ],
)
def test_a_difference_from_the_record_is_an_error(play: Play, tmp_path: Path, change: str, said: str) -> None:
    run = play()
    (tmp_path / change).touch()
    with pytest.raises(EpisodesMissing) as lost:
        forked(run, 2)
    assert said in lost.value.message
    assert "4 ReplayDiffers" in lost.value.message
    assert "define save() and restore()" in (lost.value.remedy or "")
    assert "count1#0@2" in (lost.value.place or "")


def test_another_system_prompt_is_a_difference(play: Play) -> None:
    run = play()
    with pytest.raises(
        EpisodesMissing, match="the opening, message 0: recorded is 'user: .*played back 'system: Count.'"
    ):
        forked(run, 1, overrides={"agent.system": "Count."})


def test_a_failed_episode_cannot_be_resumed(play: Play, tmp_path: Path) -> None:
    run = play(script="slow", **{"rewards.exact.use": "./task.py:counts", "limits.user_errors": 100})
    with pytest.raises(AgentRLError, match=r"it failed \(user_error") as refused:
        forked(run, 1)
    assert "--status done" in (refused.value.remedy or "")


@pytest.mark.slow
def test_the_values_of_turns(play: Play) -> None:
    run = play(script="hasty")
    parent = max(run.whole_episodes(), key=lambda e: len(e.turns))
    out = run.path.with_name("probe")
    plot = run.path.with_name("values.svg")
    found = probe(run, parent.id, 12, out=out, plot=plot, reporters=())
    assert_sound(out)
    assert "<svg" in plot.read_text()
    ends = [*(turn.value for turn in found.turns), parent.reward or 0.0]
    for turn, before, after in zip(found.turns, ends, ends[1:], strict=False):
        assert turn.worth == pytest.approx(after - before)
        assert turn.credit is not None
    assert (found.estimator, found.no_credit) == ("gigpo", "")
    with pytest.raises(AgentRLError, match="nobody"):
        probe(run, parent.id, 12, out=out, estimator="nobody", reporters=())


def test_means_and_errors(play: Play) -> None:
    parent = play().episode("count0#0")
    rewards = {0: [0.0, 1.0], 1: [1.0, 1.0], 2: [0.0, 0.0]}
    first, second, third = values_of(parent, rewards, [3.0, 2.0, 1.0])
    assert (first.value, first.value_error, first.worth, first.worth_error) == (0.5, 0.5, 0.5, 0.5)
    assert (second.value, second.worth, second.credit) == (1.0, -1.0, 2.0)
    assert (third.worth, third.worth_error) == ((parent.reward or 0.0), 0.0)
