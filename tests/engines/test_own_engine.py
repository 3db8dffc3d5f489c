"""An engine of one's own, selected as any other plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.api.train import train
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import AgentRLError
from tests.command import agentrl as command
from tests.counting import CODE, RECIPE, TRAINING, metrics

ENGINES = """
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.types.engine import Completion, Engine
from agentrl.types.episode import VersionSpan

class Says(Engine):
    "Says one thing."
    def __init__(self, tokenizer, definitions, text: str, urls: list = ["nowhere"], retries: int = 7, gpus: str = ""):
        self.said = tokenizer.encode(f"{text} {urls[0]} {retries} {gpus} {len(definitions)}", special=False)
    async def generate(self, token_ids, sampling, session):
        n = len(self.said)
        versions = [VersionSpan(0, 0, n)]
        return Completion(token_ids=self.said, logprobs=[0.0] * n, finish="stop", versions=versions)

class Own(TorchEngine):
    "The embedded engine, under another name."
    def __init__(self, model, **given):
        super().__init__(model, **given)
        self.name = f"own-{given['max_batch']}"

class Text(TorchEngine):
    trainable = False

class Late(TorchEngine):
    "Knows only when it is made that it gives text."
    def __init__(self, model, **given):
        super().__init__(model, **given)
        self.trainable = False

class Dumb(Engine):
    "Lacks generate."

class Bare:
    "Has what it needs, and no base class."
    generate = Says.generate
"""


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    folder = tmp_path / "counting"
    folder.mkdir()
    (folder / "task.py").write_text(CODE)
    (folder / "engine.py").write_text(ENGINES)
    (folder / "recipe.yaml").write_text(RECIPE + TRAINING)
    return folder


def sets(*overrides: str) -> list[str]:
    return [part for each in overrides for part in ("--set", each)]


@pytest.mark.slow
def test_it_samples_with_its_own_settings(counting: Path) -> None:
    given = sets(
        "model=null", "warm_start=null", "train=null", "engine={use: ./engine.py:Says, text: hm, retries: 4, gpus: all}"
    )
    command("rollout", "counting", "-n", "3", *given, cwd=counting.parent)
    with RunDir.read(counting.parent / "runs" / "counting-Says") as run:
        assert {episode.turns[0].text for episode in run.episodes()} == {"hm nowhere 4 all 1"}
        assert run.info["recipe"]["engine"] == {"use": "./engine.py:Says", "text": "hm", "retries": 4, "gpus": "all"}
    again = command("rollout", "counting", "-n", "3", *given, cwd=counting.parent)
    assert "3 of 3 episodes are stored already" in again.stdout + again.stderr


@pytest.mark.slow
def test_it_is_trained_with_as_the_built_in_one(counting: Path) -> None:
    short = sets("train.iterations=1", "warm_start.steps=5")
    command("train", "counting", *short, "--out", "built-in", cwd=counting.parent)
    command("train", "counting", *short, *sets("engine={use: ./engine.py:Own, max_batch: 64}"), "--out", "own",
            cwd=counting.parent)  # fmt: skip
    assert metrics(counting.parent / "own") == metrics(counting.parent / "built-in")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{use: ./engine.py:Says}", "needs the setting 'text'"),
        ("{use: ./engine.py:Says, text: a, urlz: 3}", "has no setting 'urlz'"),
        (
            "{use: ./engine.py:Own, retries: 3}",
            r"no setting 'retries'\n.*vllm, openai have it; its settings: max_batch, parked_mb, ",
        ),
        ("{use: ./engine.py:Completion}", "not an Engine subclass"),
        ("./engine.py:Dumb", "lacks the method generate"),
        ("{use: ./engine.py:Sings}", "has no 'Sings'"),
        ("{use: ./engine.py:Says, text: a}", "cannot be trained on"),
        ("./engine.py:Text", "cannot be trained on"),
        ("./engine.py:Late", "cannot be trained on"),
        ("./engine.py:Bare", r"not an Engine subclass .*\n.*defines: Says, Own, Text, Late"),
    ],
)
def test_what_is_no_engine_is_refused_before_the_first_episode(counting: Path, given: str, told: str) -> None:
    with pytest.raises(AgentRLError, match=told):
        train(counting, overrides=[f"engine={given}", "warm_start=null"], out=counting.parent / "run")
