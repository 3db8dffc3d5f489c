"""Forks of episodes in which others speak too: simulated users, sub-agents and the policy in another context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.api.forks.fork import fork
from agentrl.api.forks.probe import probe
from agentrl.api.rollout import rollout
from agentrl.api.run import Run
from agentrl.api.run_dirs import EpisodesMissing, require_whole
from agentrl.engines.scripted import ScriptedEngine
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError
from tests.api.test_fork_cases import forked

CODE = """
import asyncio
from pathlib import Path
from agentrl import Agent, Say, Task, ToolAgent, tool, Tool

HERE = Path(__file__).parent

def goals(n=2):
    for k in range(n):
        yield Task.of(f"t{k}", f"You want room {k}.", room=k)

class Desk(Tool):
    "Books rooms."
    async def open(self, task, sandbox):
        self.booked = 0
    @tool
    def book(self, room: int) -> str:
        "Book a room."
        self.booked += 1
        return f"booked {room}"

class Advised(ToolAgent):
    "A context of the policy advises before each reply; `fast`: at the same time."
    async def run(self, session):
        for k in range(3):
            asked = [{"role": "user", "content": f"Advise {k}"}]
            other = session.context(f"advice-{k}", asked, tools=[], policy=self.of)
            if (HERE / "fast").exists():
                await asyncio.gather(session.generate(), other.generate())
            else:
                session.say((await other.generate()).text)
                await session.generate()
        session.finish("answer", session.turns[-1].text)
    of = "policy"

class Judged(Advised):
    of = "self"

def one(task, episode):
    return float(any("booked" in str(turn.observations) for turn in episode.turns) or episode.answer is not None)

def clerk(task, rng):
    yield Say("Which room?")
    yield Say(calls=[("book", {"room": task.data["room"]})])
    yield Say(f"Done {rng.randint(0, 999)}.")

def guest(task, rng, context=""):
    yield Say(f"Hello {rng.randint(0, 999)}!")
    yield Say(f"Room {task.data['room']}, please.")
    yield Say("Thanks. ###STOP###")

def chatty(task, rng):
    while True:
        yield Say(f"hello {rng.randint(0, 9999)}")
"""

RECIPE = """\
name: desk
tasks: ./task.py:goals
tools: [./task.py:Desk]
agent: {use: AGENT}
rewards: {one: ./task.py:one}
scripts: {clerk: ./task.py:clerk, guest: ./task.py:guest, chatty: ./task.py:chatty}
"""


def play(tmp_path: Path, agent: str = "dialogue", script: str = "clerk") -> Run:
    (tmp_path / "task.py").write_text(CODE)
    users = "policies: {user: {script: guest}}\n" if agent == "dialogue" else ""
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("AGENT", agent) + users)
    return rollout(tmp_path, 1, script=script, out=tmp_path / "run", reporters=())


def said(episode: Episode) -> list[tuple[str, str]]:
    return [(turn.context, turn.text) for turn in episode.turns]


def tokens(episode: Episode, node: int) -> list[list[int]]:
    """The tokens of a conversation up to a node, those of each node apart."""
    return [episode.nodes[each].token_ids for each in episode.path(node)]


@pytest.mark.parametrize("turn", range(6))
def test_an_episode_in_which_the_user_speaks_first_is_resumed_from_each_turn(
    tmp_path: Path, turn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play(tmp_path)
    prompts = []

    async def noted(self: ScriptedEngine, prompt: list[int], *rest: Any) -> Any:
        prompts.append(prompt)
        return await generate(self, prompt, *rest)

    generate = ScriptedEngine.generate
    monkeypatch.setattr(ScriptedEngine, "generate", noted)
    (parent,) = run.whole_episodes()
    assert [each.context for each in parent.turns] == ["user", "main", "user", "main", "main", "user"]
    _, child = forked(run, turn)
    assert said(child)[:turn] == said(parent)[:turn]
    assert [each.context for each in child.turns] == [each.context for each in parent.turns]
    assert (child.reward, child.contexts["user"].prompt) == (1.0, parent.contexts["user"].prompt)
    for own, recorded in zip(child.turns[:turn], parent.turns, strict=False):
        assert child.nodes[own.node].kind != "sampled"
        assert child.nodes[own.node].token_ids == parent.nodes[recorded.node].token_ids
    assert "Done" in child.turns[4].text
    assert len(prompts) == 6 - turn
    assert all(prompts), "the user's prompt is rendered, as its tokens are not recorded"


def test_a_fork_of_a_fork_has_the_user_of_both(tmp_path: Path) -> None:
    run = play(tmp_path)
    made = fork(run, "t0#0", 3, 1, out=tmp_path / "one", reporters=())
    (child,) = made.whole_episodes()
    _, grandchild = forked(made, 5, "two")
    assert said(grandchild)[:5] == said(child)[:5]


def test_what_the_user_heard_is_compared_with_the_record(tmp_path: Path) -> None:
    run = play(tmp_path)
    out = tmp_path / "forks"
    with pytest.raises(EpisodesMissing, match="the opening of 'user'.*message 1: recorded is 'user: Hello. How can I"):
        require_whole(fork(run, "t0#0", 3, 1, out=out, reporters=(), overrides={"agent.greeting": "Yes?"}).path)


def test_only_the_turns_of_the_policy_are_probed(tmp_path: Path) -> None:
    found = probe(play(tmp_path), "t0#0", 2, out=tmp_path / "probe", reporters=())
    assert [each.turn for each in found.turns] == [1, 3, 4]
    assert [each.value for each in found.turns] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("agent", ["Advised", "Judged"])
def test_contexts_of_the_policy_are_repeated_token_for_token(tmp_path: Path, agent: str) -> None:
    run = play(tmp_path, f"./task.py:{agent}", "chatty")
    (parent,) = run.whole_episodes()
    for turn in (2, 3, 4):
        _, child = forked(run, turn, f"forks-{turn}")
        assert said(child)[:turn] == said(parent)[:turn]
        assert said(child)[turn] != said(parent)[turn]
        for own, recorded in zip(child.turns[:turn], parent.turns, strict=False):
            assert tokens(child, own.node) == tokens(parent, recorded.node)
        *prompt, _ = tokens(child, child.turns[turn].node)
        assert prompt == tokens(parent, parent.turns[turn].node)[:-1]


def test_a_turn_that_ended_before_an_earlier_one_is_no_place_to_resume(tmp_path: Path) -> None:
    (tmp_path / "fast").touch()
    run = play(tmp_path, "./task.py:Advised", "chatty")
    (parent,) = run.whole_episodes()
    late = [turn.index for turn in parent.turns if any(each.node > turn.node for each in parent.turns[: turn.index])]
    for turn in late:
        with pytest.raises(StoreError, match="was sampled at the same time") as refused:
            fork(run, "t0#0", turn, 1, out=tmp_path / "late", reporters=())
        assert refused.value.remedy == f"resume from turn {turn - 1}"
