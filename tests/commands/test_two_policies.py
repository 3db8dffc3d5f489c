"""Two policies that train, with a frozen voice beside them: what each is trained on, what is saved, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import agentrl
from agentrl.api.train import train
from agentrl.store import RunDir
from agentrl.training.trainer import Trainer
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError, TrainError
from agentrl.types.sample import TrainingSample, training_samples
from tests.counting import metrics
from tests.engines.vllm_world import small_model
from tests.sound import assert_sound

TASK = '''
from agentrl import Agent

class Duet(Agent):
    """A writer and its critic, each with a context; a frozen voice that both hear."""

    async def run(self, session):
        critic = session.context("critic", [{"role": "user", "content": "Criticise."}], policy="critic")
        crowd = session.context("crowd", [{"role": "user", "content": "Listen."}], policy="crowd")
        for _ in range(2):
            critic.say((await session.generate()).text)
            crowd.say((await critic.generate()).text)
            heard = (await crowd.generate()).text
            session.say(heard)
        session.finish("answer", "done")

def letters(episode):
    return sum(turn.text.count("a") for turn in episode.own_turns) / 10

def length(episode):
    return sum(len(turn.text) for turn in episode.turns if turn.context == "critic") / 100
'''
CRITIC = {"lora": {"rank": 4}, "train": True, "outcome": {"length": 1}, "sampling": {"max_tokens": 16}}
POLICIES: dict[str, Any] = {"critic": CRITIC, "crowd": {"checkpoint": "model"}}
RECIPE: dict[str, Any] = {
    "name": "duet",
    "tasks": {"jsonl": "tasks.jsonl", "prompt": "Write about {n}."},
    "agent": {"use": "./task.py:Duet"},
    "rewards": {"letters": "./task.py:letters", "length": {"use": "./task.py:length", "weight": 0}},
    "model": {"path": "model", "device": "cpu"},
    "engine": {"batch_invariant": True},
    "sampling": {"max_tokens": 12},
    "policies": POLICIES,
    "train": {"iterations": 2, "groups": 2, "group_size": 4, "lr": 0.01},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    return tmp_path


def write(folder: Path, **more: Any) -> None:
    """The recipe with its model in a folder."""
    small_model(folder / "model")
    (folder / "tasks.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    (folder / "task.py").write_text(TASK)
    (folder / "recipe.yaml").write_text(json.dumps(RECIPE | more))


def outcomes(episodes: list[Episode], name: str) -> np.ndarray[Any, Any]:
    """A component by episode, less the mean of its group."""
    values = {episode.id: float(episode.components[name] or 0) for episode in episodes}
    groups: dict[str, list[float]] = {}
    for episode in episodes:
        groups.setdefault(episode.group_id, []).append(values[episode.id])
    return np.array([values[episode.id] - np.mean(groups[episode.group_id]) for episode in episodes])


@pytest.mark.slow
@pytest.mark.parametrize("main", [{}, {"lora": {"rank": 2}}], ids=["weights", "lora"])
def test_each_policy_trains_on_its_own_turns_and_outcome(folder: Path, main: dict[str, Any]) -> None:
    credit = {"use": "grpo", "std": "none"}
    agentrl.train("recipe.yaml", overrides={"train": RECIPE["train"] | main, "credit": credit}, out="run", reporters=())
    assert_sound(folder / "run")
    with RunDir.read(folder / "run") as run:
        episodes = list(run.episodes(split="train"))
        credits = [run.credit(episode.id) for episode in episodes]
        lines = [line for line in run.metrics() if line["split"] == "train"]
    for iteration in (0, 1):
        these = [k for k, episode in enumerate(episodes) if episode.iteration == iteration]
        mine = [episodes[k] for k in these]
        for context, component in (("main", "letters"), ("critic", "length"), ("crowd", None)):
            given = [
                [credits[k].turn_advantages[t.index] for t in episodes[k].turns if t.context == context] for k in these
            ]
            wanted = outcomes(mine, component) if component else np.zeros(len(mine))
            np.testing.assert_allclose(given, np.stack([wanted] * 2, 1), atol=1e-6)
    for episode in episodes:
        kinds = {(turn.context, episode.nodes[turn.node].kind) for turn in episode.turns}
        assert kinds == {("main", "sampled"), ("critic", "sampled"), ("crowd", "spoken")}
        seen = {name: training_samples(episode.seen_by(name), [1.0] * 6) for name in episode.trained_policies}
        trained = {name: {turn for row in rows for turn, _, _ in row.turn_spans} for name, rows in seen.items()}
        assert trained == {"policy": {0, 3}, "critic": {1, 4}}
        assert episode.sampled_tokens == sum(int(row.loss_mask.sum()) for row in training_samples(episode, [1.0] * 6))
        assert episode.reply_tokens == episode.sampled_tokens
        versions = {span.version for turn in episode.turns for span in episode.nodes[turn.node].versions}
        assert versions == {episode.iteration}
    assert all(line["critic/grad_norm"] > 0 and line["grad_norm"] > 0 for line in lines)
    # The engine of each samples from what its trainer has: log-probabilities agree after an update, too.
    assert all(line["critic/mismatch_max"] < 1e-3 and line["mismatch_max"] < 1e-3 for line in lines)


@pytest.mark.slow
def test_both_policies_resume_with_their_optimisers(folder: Path) -> None:
    agentrl.train("recipe.yaml", out="whole", reporters=())
    agentrl.train("recipe.yaml", overrides=["train.iterations=1"], out="halves", reporters=())
    agentrl.train("recipe.yaml", out="halves", reporters=())
    for policy in (".", "policies/critic"):
        whole, halves = (
            load_file(folder / run / "checkpoints" / "it-00002" / policy / "model.safetensors")
            for run in ("whole", "halves")
        )
        assert [name for name, tensor in whole.items() if not torch.equal(tensor, halves[name])] == []


@pytest.mark.slow
def test_each_policy_remembers_values_of_its_own(folder: Path) -> None:
    """Both act in one state, and are paid differently: what `agentrl credit` computes again is what trained."""
    keyed = TASK.replace("async def run", "def state_key(self):\n        return 'on stage'\n\n    async def run")
    (folder / "task.py").write_text(keyed)
    remembering = ["credit={use: gagpo, decay: 0.5, std: none}", "train.iterations=1"]
    agentrl.train("recipe.yaml", overrides=remembering, out="run", reporters=())
    agentrl.train("recipe.yaml", overrides=[*remembering, "train.iterations=2"], out="run", reporters=())
    held = json.loads((folder / "run/checkpoints/it-00002/state.json").read_text())["credit"]
    assert held.keys() == {"", "critic"}
    assert held[""]["keys"] == held["critic"]["keys"]
    assert held[""]["counts"] != held["critic"]["counts"]
    again = {each.episode_id: each.turn_advantages for each in agentrl.credit("run").credits}
    with RunDir.read(folder / "run") as run:
        assert [line["critic/known_states"] for line in run.metrics() if line["split"] == "train"] == [0, 1]
        for id in run.ids(split="train"):
            stored = run.credit(id)
            assert stored is not None
            np.testing.assert_allclose(again[id], stored.turn_advantages, atol=1e-12)


@pytest.mark.slow
def test_a_checkpoint_holds_both_policies(folder: Path) -> None:
    agentrl.train("recipe.yaml", overrides=["train.iterations=1"], out="run", reporters=())
    newest = folder / "run" / "checkpoints" / "it-00001"
    start, main, critic = (
        load_file(path / "model.safetensors") for path in (folder / "model", newest, newest / "policies" / "critic")
    )
    moved = {name for name in start if not torch.equal(start[name], critic[name])}
    assert moved
    assert all("_proj" in name for name in moved), "adapters are of linear layers"
    assert any(not torch.equal(main[name], critic[name]) for name in start)
    assert (newest / "policies" / "critic" / "adapter" / "adapter_model.safetensors").is_file()

    agentrl.eval("run", 2, out="eval", reporters=())
    assert_sound(folder / "eval")
    with RunDir.read(folder / "eval") as run:
        assert {c.trains for episode in run.episodes() for c in episode.contexts.values()} == {False}

    agentrl.train("recipe.yaml", overrides=["train.iterations=2"], out="run", reporters=())
    agentrl.train("recipe.yaml", overrides=["train.iterations=2"], out="whole", reporters=())
    assert metrics(folder / "run") == metrics(folder / "whole")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("policies.critic={train: true}", "'train' needs adapters"),
        ("policies.critic={lora: {rank: 4}}", "add train: true"),
        ("policies.critic={checkpoint: model, outcome: {length: 1}}", "'outcome' is what a policy trains on"),
        ("policies.critic={lora: {rank: 4}, train: true, checkpoint: model}", "remove 'checkpoint'"),
        ("policies.critic.outcome={lenth: 1}", "'lenth' is no component"),
        ("policies.critic.sampling={temperature: 0.5}", "policies.critic.sampling.temperature"),
        ("policies.critic.lora={rnk: 4}", "rnk"),
        ("train={max_staleness: 1, old_logprobs: engine}", "not with this train.max_staleness"),
        ("scale.rollout_workers=2", "not with scale.rollout_workers"),
        ("scale={use: process, trainer_ranks: 2}", "not with this scale.trainer_ranks"),
        ("engine={use: vllm, urls: ['http://127.0.0.1:1']}", "not with engine.use"),
        ("model={scratch: {vocab_size: 300}}", "policies.critic.lora: a scratch model has random weights"),
    ],
)
def test_what_cannot_train_is_refused(folder: Path, override: str, said: str) -> None:
    with pytest.raises(AgentRLError) as refused:
        agentrl.train("recipe.yaml", overrides=[override], out="run", reporters=())
    assert said in str(refused.value)
    assert not (folder / "run").exists()


@pytest.mark.slow
def test_recorded_turns_of_a_frozen_voice_do_not_train_a_policy_of_its_name(folder: Path) -> None:
    once = ["train.iterations=1"]
    agentrl.train("recipe.yaml", overrides=[*once, "policies.critic={checkpoint: model}"], out="run", reporters=())
    train("recipe.yaml", overrides=once, from_run="run", out="again", reporters=())
    with RunDir.read(folder / "again") as run:
        (line,) = (line for line in run.metrics() if line["split"] == "train")
        credited = {episode.id: run.credit(episode.id).turn_advantages for episode in run.episodes()}
        contexts = {episode.id: [turn.context for turn in episode.turns] for episode in run.episodes()}
    assert (line["critic/trained_rows"], line["critic/trajectories"], line["critic/reward"]) == (0, 0, None)
    given: dict[str, list[float]] = {name: [] for name in ("main", "critic", "crowd")}
    for id, advantages in credited.items():
        for context, advantage in zip(contexts[id], advantages, strict=True):
            given[context].append(advantage)
    assert any(given["main"])
    assert not any([*given["critic"], *given["crowd"]])


@pytest.mark.slow
def test_an_update_that_fails_names_its_policy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Trainer.update

    def update(trainer: Trainer, samples: list[TrainingSample], **how: Any) -> dict[str, float]:
        if trainer.settings.lora is not None:
            raise TrainError("the loss is not finite", remedy="a lower lr")
        return own(trainer, samples, **how)

    monkeypatch.setattr(Trainer, "update", update)
    with pytest.raises(TrainError, match="^policies.critic: the loss is not finite\n"):
        agentrl.train("recipe.yaml", overrides=["train.iterations=1"], out="run", reporters=())


def test_a_second_policy_does_not_speak_in_demonstrations(folder: Path) -> None:
    with (folder / "task.py").open("a") as file:
        file.write("\nfrom agentrl import Say\n\ndef shy(task, rng):\n    yield Say('a')\n")
    demonstrations = ["scripts={shy: './task.py:shy'}", "warm_start={script: shy, episodes: 2, steps: 1}"]
    with pytest.raises(AgentRLError):
        agentrl.train("recipe.yaml", overrides=demonstrations, out="run", reporters=())
    with RunDir.read(folder / "run") as run:
        said = {episode.error.message.partition("\n")[0] for episode in run.episodes() if episode.error is not None}
    assert said == {"policies.critic: it speaks in a training only, and no reinforcement has begun"}
