"""A trainer of one's own, selected as any other plug-in: the loop speaks to its contract alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agentrl
from agentrl.config.loader import load_recipe
from agentrl.preflight.plan import plan
from agentrl.types.errors import AgentRLError
from tests.counting import CANARY, TINY, metrics, write

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text()
LETTERS = """
def letters(episode):
    return float(len({letter for turn in episode.turns for letter in turn.text}))
"""


@pytest.mark.slow
def test_a_trainer_from_outside_takes_the_steps(tmp_path: Path) -> None:
    recipe = write(tmp_path / "counting", TINY + "train: {iterations: 1, groups: 2, group_size: 4}\n")
    (scaled,) = re.findall(r"```python\n(.*?class Scaled.*?)```", PAGE, re.DOTALL)
    (recipe / "scaled.py").write_text(scaled + LETTERS)

    def grad_norm(backend: str) -> float:
        sets = [f"train.backend={backend}", "rewards={letters: ./scaled.py:letters}", "credit=grpo"]
        run = agentrl.train(str(recipe), overrides=sets, out=tmp_path / str(len(backend)), reporters=())
        assert run is not None
        return float(run.metrics[-1]["grad_norm"])

    local = grad_norm("local")
    assert local > 0
    assert grad_norm("./scaled.py:Scaled") == local
    assert grad_norm("{use: ./scaled.py:Scaled, by: 4}") == pytest.approx(4 * local, rel=1e-5)


TABLE = '''
import random
from dataclasses import replace
import numpy as np
import torch
from agentrl.models.load import load_model
from agentrl.training.backend import TrainerCapabilities, TrainerBackend
from agentrl.types.engine import Completion, Engine
from agentrl.types.episode import VersionSpan

SERVER = {}

class Table(TrainerBackend):
    """A logit a token, whatever is before it, on a server: an engine gets the name of a sampler."""
    capabilities = TrainerCapabilities(
        losses=frozenset({"reinforce"}), features=frozenset({"all_weights"}), unread=frozenset({"precision"})
    )

    def __init__(self, job, step: float = 4.0):
        self.job, self.step = job, step

    async def open(self):
        found = load_model(self.job.recipe.model, texts=[], seed=0)
        self.logits = torch.zeros(len(found.tokenizer))
        return replace(found, model=None)

    async def begin(self):
        pass

    def of(self, logits, sample):
        return torch.log_softmax(logits, -1)[torch.from_numpy(sample.token_ids)]

    async def logprobs(self, samples, *, reference=False):
        return [np.where(each.loss_mask, self.of(self.logits, each).numpy(), np.float32(0)) for each in samples]

    async def update(self, samples, *, seed, progress):
        logits = self.logits.clone().requires_grad_()
        gains = [(self.of(logits, each) * torch.from_numpy(each.advantage)).sum() for each in samples]
        loss = -torch.stack(gains).mean()
        loss.backward()
        self.logits = self.logits - self.step * logits.grad
        return {"loss": loss.item()}

    async def fit(self, samples, loss, lr, *, fresh=False):
        raise NotImplementedError

    async def publish(self, engine, checkpoint=None):
        SERVER[name := f"sampler-{len(SERVER)}"] = self.logits
        return name

    async def save(self, folder, *, resumes=True):
        return {"logits": self.logits}

    async def load(self, state):
        self.logits = state["logits"]

class Sampler(Engine):
    """Samples from the table that the server has under a name."""
    name, trainable, max_context, checkpoint_names, takes_adapters = "sampler", True, 256, False, False

    def __init__(self): pass
    async def start(self): pass
    def begin_session(self, session, task, messages, seed): pass
    def end_session(self, session): pass
    async def close(self): pass

    async def update(self, weights, version):
        self.logprobs, self.version = torch.log_softmax(SERVER[weights], -1).tolist(), version

    async def generate(self, token_ids, sampling, session):
        own, n = np.exp(self.logprobs), sampling.max_tokens
        ids = random.Random(sampling.seed).choices(range(len(own)), own, k=n)
        spans = [VersionSpan(self.version, 0, n)]
        return Completion(token_ids=ids, logprobs=[self.logprobs[k] for k in ids], finish="length", versions=spans)

    async def score(self, prefix, continuations, at=None):
        return [[self.logprobs[token] for token in each] for each in continuations]

def told(task, rng):
    yield None

def letters(episode):
    return sum(letter.islower() for letter in episode.turns[0].text) / 16
'''
OWN = """\
name: letters
tasks: {jsonl: tasks.jsonl, prompt: "Write about {n}."}
rewards: {letters: ./table.py:letters}
agent: {max_turns: 1}
model: {scratch: {hidden: 16, layers: 1, heads: 1, vocab_size: 300, max_context: 256}}
sampling: {max_tokens: 16}
engine: ./table.py:Sampler
train: {backend: ./table.py:Table, loss: reinforce, iterations: 6, groups: 4, group_size: 8}
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "table.py").write_text(TABLE)
    (folder / "recipe.yaml").write_text(OWN)
    (folder / "tasks.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n{"n": 4}\n')
    return str(folder)


@pytest.mark.slow
def test_a_policy_on_a_server_learns_and_resumes(own: str, tmp_path: Path) -> None:
    agentrl.train(own, out=tmp_path / "whole", reporters=())
    agentrl.train(own, out=tmp_path / "halves", overrides=["train.iterations=3"], reporters=())
    agentrl.train(own, out=tmp_path / "halves", reporters=())
    whole, halves = (metrics(tmp_path / name, CANARY) for name in ("whole", "halves"))
    assert halves == whole
    assert whole[-1]["reward"] > whole[0]["reward"] + 0.2
    assert not list((tmp_path / "whole").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("sets", "why", "place"),
    [
        ("train.loss=ppo_clip", "does not compute the loss ppo_clip", "train.loss"),
        ("train.kl={coef: 0.1}", "the log-probabilities of a reference policy", "train.kl"),
        ("train.entropy_bonus=0.1", "the policy's entropy", "train.entropy_bonus"),
        ("credit=turn_gae; train.critic={}", "a critic", "credit.estimator"),
        ("model={path: model}; train.lora={rank: 4}", "trains no adapters", "train.lora"),
        ("train.packing=tree", "packs no prefix trees", "train.packing"),
        ("train.precision=bfloat16", "does not read train.precision", "train.precision"),
        ("scale={use: process, trainer_ranks: 2}", "is one process", "scale.trainer_ranks"),
        ("train.record_tokens=1", "records no numbers of tokens", "train.record_tokens"),
        ("sampling.temperature=0.5", "at temperature 1", "sampling.temperature"),
        ("curriculum=[entropy_target]", "at temperature 1", "curriculum.0"),
        ("engine=torch", "gives its weights to no built-in engine", "engine"),
        (
            "scripts={told: ./table.py:told}; curriculum=[{use: relift, script: told}]",
            "the loss cross_entropy",
            "curriculum.0",
        ),
        ("train.backend=nowhere", "there is no trainer 'nowhere'", "train.backend"),
        (
            "train.backend=./table.py:Sampler",
            "not a subclass of agentrl.training.backend.TrainerBackend",
            "train.backend",
        ),
        ("train.backend={use: ./table.py:Table, stride: 2}", "has no setting 'stride'", "train.backend.stride"),
    ],
)
def test_what_a_trainer_cannot_do_is_refused_before_the_run(own: str, sets: str, why: str, place: str) -> None:
    plan(load_recipe(own))
    with pytest.raises(AgentRLError, match=re.escape(why)) as error:
        plan(load_recipe(own, sets.split("; ")))
    assert error.value.place == place


def test_a_supervised_stage_needs_its_loss_too(own: str) -> None:
    stages = "stages=[{name: first, sft: {jsonl: ./tasks.jsonl, steps: 1}}]"
    with pytest.raises(AgentRLError, match="does not compute the loss cross_entropy"):
        plan(load_recipe(own, [stages]))
