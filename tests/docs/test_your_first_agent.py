"""The page docs/your-first-agent.md, executed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from tests.command import agentrl, python
from tests.counting import metrics
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "your-first-agent.md"


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """The folder that the page describes, and beside it the one with sub-agents."""
    (_, code), (_, recipe), (_, changes), (_, critic) = re.findall(
        r"```(python|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    lines = recipe.splitlines()
    for line in changes.splitlines():
        key = line.partition(":")[0]
        lines = [line if old.startswith(f"{key}:") else old for old in lines]
    for name, text in (("sums", recipe), ("team", "\n".join(lines).replace("name: sums", "name: team"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "task.py").write_text(code + "\n" + critic)
        (tmp_path / name / "recipe.yaml").write_text(text)
    return tmp_path


def episodes(run: Path, split: str | None = None) -> list[Episode]:
    assert_sound(run)
    with RunDir.read(run) as stored:
        return list(stored.episodes(split=split) if split else stored.episodes())


def test_the_context_is_compacted(sums: Path) -> None:
    agentrl("rollout", "sums", "--script", "clerk", "--n", "8", cwd=sums)
    for episode in episodes(sums / "runs" / "sums-clerk"):
        assert episode.reward == 1.0
        assert {branch.reason for branch in episode.branches} == {"summary"}
        first = episode.branches[0]
        assert episode.turns[first.turn - 1].text.startswith("Read up to")
        assert [message["content"] for message in first.messages or []][1:] == [
            f"A summary of the work so far:\n{episode.turns[first.turn - 1].text}"
        ]


def test_helpers_answer_in_contexts_of_their_own(sums: Path) -> None:
    agentrl("rollout", "team", "--script", "boss", "--n", "8", cwd=sums)
    for episode in episodes(sums / "runs" / "team-boss"):
        assert (episode.reward, sorted(episode.contexts)) == (1.0, ["helper-1", "helper-2", "helper-3"])
        assert [call.result for call in episode.turns[0].calls] == ["Read."] * 3
        assert {turn.agent for turn in episode.turns} == {"agent", "helper"}
        assert [tool["function"]["name"] for tool in episode.tools or []] == ["read", "delegate"]


@pytest.mark.parametrize("name", ["sums", "team"])
def test_both_train(sums: Path, name: str) -> None:
    agentrl("train", name, "--out", "trained", cwd=sums)
    trained = episodes(sums / "trained", "train")
    assert len(trained) == 16
    if name == "sums":
        assert any(episode.branches for episode in trained)
    else:
        assert any(episode.contexts for episode in trained)
    with RunDir.read(sums / "trained") as run:
        assert all(run.credit(episode.id) is not None for episode in trained)


def test_the_critic_speaks_in_its_own_context(sums: Path) -> None:
    sets = ("--set", "agent={use: ./task.py:Critic, format: tags}")
    agentrl("rollout", "team", "--script", "random", "--n", "2", *sets, cwd=sums)
    for episode in episodes(sums / "runs" / "team-random"):
        assert [turn.context for turn in episode.turns] == ["main", "critic", "main"]


NOISE = """
class Twice(Critic):
    forks = 1

    async def run(self, session):
        await super().run(session)
        if session.forks_left:
            async with session.fork(0) as fork:
                await super().run(fork)

def noise(episode) -> float:
    return len(episode.turns[-1].text) % 3 / 2

def thrice(task, rng, context):
    for k in range(3):
        yield Say(f"{context} {k}")
"""


def test_kills_change_no_number_with_contexts_and_forks(sums: Path) -> None:
    recipe = sums / "sums" / "recipe.yaml"
    lines = [
        line for line in recipe.read_text().splitlines() if not line.startswith(("agent:", "rewards:", "scripts:"))
    ]
    lines = [line.replace("script: clerk", "script: thrice").replace("steps: 60", "steps: 20") for line in lines]
    lines += ["agent: {use: ./task.py:Twice, format: tags}", "rewards: {noise: ./task.py:noise}"]
    lines += ["scripts: {thrice: ./task.py:thrice}", "engine: {batch_invariant: true}"]
    recipe.write_text("\n".join(lines))
    with (sums / "sums" / "task.py").open("a") as file:
        file.write(NOISE)
    agentrl("train", "sums", "--out", "whole", cwd=sums)
    deaths = "rollout:11,checkpoint write:2"
    python("-m", "tests.commands.lives", deaths, "train", "sums", "--out", "killed", cwd=sums)
    assert metrics(sums / "killed") == metrics(sums / "whole")
    played = episodes(sums / "killed", "train")
    assert {tuple(turn.context for turn in episode.turns) for episode in played} == {("main", "critic", "main")}
    assert sorted(episode.parent.episode for episode in played if episode.parent) == sorted(
        episode.id for episode in played if not episode.parent
    )
