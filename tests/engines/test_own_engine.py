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
import copy
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.types.engine import Completion
from agentrl.types.episode import VersionSpan

class Says:
    "Says one thing."
    name, trainable, max_context, checkpoint_names, takes_adapters = "says", False, 10_000, False, False
    def __init__(self, tokenizer, definitions, text: str, urls: list = ["nowhere"], retries: int = 7, gpus: str = ""):
        self.said = tokenizer.encode(f"{text} {urls[0]} {retries} {gpus} {len(definitions)}", special=False)
    async def start(self): pass
    def begin_session(self, session, task, messages, seed): pass
    async def generate(self, token_ids, sampling, session):
        n = len(self.said)
        versions = [VersionSpan(0, 0, n)]
        return Completion(token_ids=self.said, logprobs=[0.0] * n, finish="stop", versions=versions)
    async def score(self, prefix, continuations, at=None): raise NotImplementedError
    async def update(self, weights, version): raise NotImplementedError
    def end_session(self, session): pass
    async def close(self): pass

class Own(TorchEngine):
    "The embedded engine, under another name."
    def __init__(self, loaded, tokenizer, max_batch: int = 64):
        super().__init__(
            copy.deepcopy(loaded.model), max_context=loaded.max_context, decode=tokenizer.decode, max_batch=max_batch
        )
        self.name = f"own-{max_batch}"

class Text(Own):
    def __init__(self, loaded, tokenizer):
        super().__init__(loaded, tokenizer)
        self.trainable = False

class Bare:
    def __init__(self, text: str = ""): pass
    start = begin_session = generate = score = update = end_session = close = Says.start
    generate, score, update = Says.generate, Says.score, Says.update
    begin_session, end_session = Says.begin_session, Says.end_session
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
            r"no setting 'retries'\n.*vllm, openai have it; its settings: max_batch$",
        ),
        ("{use: ./engine.py:Completion}", "lacks the method"),
        ("{use: ./engine.py:Sings}", "has no 'Sings'"),
        ("{use: ./engine.py:Says, text: a}", "cannot be trained on"),
        ("./engine.py:Text", "cannot be trained on"),
        ("./engine.py:Bare", "lacks name, trainable, max_context, checkpoint_names, takes_adapters"),
    ],
)
def test_what_is_no_engine_is_refused_before_the_first_episode(counting: Path, given: str, told: str) -> None:
    with pytest.raises(AgentRLError, match=told):
        train(counting, overrides=[f"engine={given}", "warm_start=null"], out=counting.parent / "run")
