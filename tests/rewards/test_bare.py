"""Turn rewards of tools and outcomes of the same name: each stays what it is when an episode is scored again."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.api.rescore import rescore
from agentrl.api.rollout import rollout
from agentrl.rewards.bare import bare_turns
from agentrl.store.rescored import load, rescored
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import StoreError
from agentrl.types.figures.of_episodes import earned, figure
from tests.store.make import make_episode

CODE = """
from agentrl import Agent, Say

class Paid(Agent):
    async def run(self, session):
        await session.generate()
        session.reward(whole=1.0, other=2.0)
        session.finish("answer", "x")

def whole(episode): return 0.25
def turns(episode): return [0.5 for turn in episode.turns]
def oracle(task, rng): yield Say("x")
"""
RECIPE = """\
name: x
tasks: {jsonl: t.jsonl, prompt: x}
agent: ./task.py:Paid
rewards: {whole: ./task.py:whole, turns: ./task.py:turns}
gate: [{on: whole, above: 0.5, shuts: [turns]}]
scripts: {oracle: ./task.py:oracle}
"""


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one episode, in the working folder."""
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "t.jsonl").write_text("{}\n")
    monkeypatch.chdir(tmp_path)
    rollout("recipe.yaml", 1, script="oracle", out="run", reporters=())
    return tmp_path / "run"


def test_scoring_again_gives_the_same_numbers(played: Path) -> None:
    rescore("run", name="again")
    with RunDir.read(played) as run:
        (episode,) = run.episodes()
        (again,) = rescored([episode], load(played, "again"))
    (turn,) = episode.turns
    assert turn.rewards == {"whole": 1.0, "other": 2.0, "turns": 0.5}
    assert again.turns[0].rewards == turn.rewards
    assert [(gate.value, gate.open) for gate in episode.gates] == [(0.25, False)]  # the outcome, not the turns' sum
    assert (again.turns[0].reward, again.reward) == (turn.reward, episode.reward)


def test_scores_under_another_success_are_others(played: Path) -> None:
    """They were taken for those that are there, and success stayed what it had been."""
    told = rescore("run", overrides=["gate=[]"])["components"]
    with RunDir.read(played) as run:
        (episode,) = rescored(run.episodes(), load(played, "again"))
    assert told["reward"]["new"] == earned(episode) == 0.25 + 1.0 + 2.0 + 0.5
    assert told["whole"]["new"] == figure(episode, "whole") == 0.25
    with pytest.raises(StoreError, match="again"):
        rescore("run", overrides=["gate=[]", "success=whole"])


def test_what_functions_gave_turns_is_taken_off_and_what_tools_gave_stays() -> None:
    episode = make_episode("e", components={"whole": 1.0})
    (kept, *_) = bare_turns(episode, {"whole", "progress"})
    assert "progress" not in kept.rewards
    outcome = make_episode("e", components={"progress": None})
    assert bare_turns(outcome, {"whole", "progress"}) == outcome.turns
