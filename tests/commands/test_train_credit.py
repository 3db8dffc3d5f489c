"""Credit that takes a model, from a recipe: gold answers scored, critics trained, runs continued."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.api.credit import credit as credited_again
from agentrl.api.recipe_check import check as recipe_check
from agentrl.api.rollout import rollout
from agentrl.config.credit import CreditSettings
from agentrl.estimators.registry import load_credit
from agentrl.store.run_dir import RunDir
from agentrl.types.errors import AgentRLError
from tests.command import agentrl, sets
from tests.sound import assert_sound

pytestmark = pytest.mark.slow


@pytest.fixture
def here(trainable: Path) -> Path:
    """Where commands run; the tasks have gold answers."""
    recipe, code = trainable / "recipe.yaml", trainable / "task.py"
    recipe.write_text(recipe.read_text().replace("eval: {episodes: 12}\n", ""))
    code.write_text(code.read_text().replace("to=k % 5 + 1)", "to=k % 5 + 1, answer=k % 5 + 1)"))
    return trainable.parent


def train(here: Path, out: str, estimator: str, *more: str, iterations: int = 2) -> list[dict[str, Any]]:
    changes = [f"credit.use={estimator}", f"train.iterations={iterations}", *more]
    agentrl("train", "counting", "--out", out, *sets(*changes), cwd=here)
    with RunDir.read(here / out) as run:
        return [line for line in run.metrics() if line["split"] == "train"]


def test_information_gain_from_rollout_to_credit(here: Path) -> None:
    lines = train(here, "run", "igpo", "warm_start.steps=20")
    assert all(line["information_gain_s"] > 0 and 0 < line["information_gain_share"] < 1 for line in lines)
    assert any(line["information_gain"] != 0 for line in lines)
    with RunDir.read(here / "run") as run:
        episodes = sorted(run.episodes(split="train", iteration=0), key=lambda e: e.id)
        stored = [run.credit(episode.id) for episode in episodes]
        assert all(turn.gold_logprob < 0 for episode in episodes for turn in episode.turns)
        assert not any(turn.gold_logprob for episode in run.episodes(split="demo") for turn in episode.turns)
    # Credited again from the store, without a model: the same numbers.
    again, _ = load_credit(CreditSettings(use="igpo")).assign(episodes)
    for credit, before in zip(again, stored, strict=True):
        np.testing.assert_allclose(credit.turn_advantages, before.turn_advantages, atol=1e-12)
    # The same weights roll out offline.
    offline = ["information_gain={}", f"model={{path: {here}/run/checkpoints/it-00002}}"]
    run = rollout(here / "counting", 4, overrides=offline, out=here / "offline", reporters=())
    assert all(turn.gold_logprob < 0 for episode in run.whole_episodes() for turn in episode.turns)


def test_hindsight_from_rollout_to_credit(here: Path) -> None:
    lines = train(here, "run", "hcapo", "warm_start.steps=20", "hindsight.outcome_tokens=8", iterations=1)
    assert all(line["hindsight_s"] > 0 and 0 < line["hindsight_share"] < 1 for line in lines)
    with RunDir.read(here / "run") as run:
        episodes = sorted(run.episodes(split="train", iteration=0), key=lambda e: e.id)
        stored = [run.credit(episode.id) for episode in episodes]
        assert all(turn.hindsight_logprob < 0 for episode in episodes for turn in episode.turns)
        assert not any(turn.hindsight_logprob for episode in run.episodes(split="demo") for turn in episode.turns)
    # Credited again from the store, without a model: the same numbers.
    again, _ = load_credit(CreditSettings(use="hcapo")).assign(episodes)
    for credit, before in zip(again, stored, strict=True):
        np.testing.assert_allclose(credit.turn_advantages, before.turn_advantages, atol=1e-12)


def test_a_critic_learns_and_continues(here: Path, warm: list[str]) -> None:
    with_critic = ("gae", *warm, "train.critic={steps: 20, lr: 0.01}")
    whole = train(here, "whole", *with_critic, iterations=3)
    assert all(line["value_loss"] >= 0 for line in whole)
    # Its weights and optimiser come back with the checkpoint: stopped and continued is the same training.
    train(here, "parts", *with_critic, iterations=1)
    parts = train(here, "parts", *with_critic, iterations=3)
    kept = ("value_loss", "value_explained", "loss", "reward")
    assert [[line.get(name) for name in kept] for line in parts] == [
        [line.get(name) for name in kept] for line in whole
    ]


REMEMBERING = ("credit.decay=0.5", "train.checkpoint_every=2", "tasks={source: ./task.py:counts, args: {n: 4}}")


def test_counted_values_continue_after_a_kill(here: Path, warm: list[str]) -> None:
    whole = train(here, "whole", "gagpo", *warm, *REMEMBERING, iterations=4)
    assert whole[0]["known_states"] == 0
    assert whole[3]["known_states"] > 0
    # Killed after its third iteration, whose checkpoint was not yet due: it goes on from the second.
    train(here, "parts", "gagpo", *warm, *REMEMBERING, iterations=3)
    shutil.rmtree(here / "parts/checkpoints/it-00003")
    parts = train(here, "parts", "gagpo", *warm, *REMEMBERING, iterations=4)
    kept = ("known_states", "remembered_states", "loss", "grad_norm", "reward")
    assert [parts[3][name] for name in kept] == [whole[3][name] for name in kept]
    # What trained can be computed again from the episodes, also of the run that was killed.
    for run in ("whole", "parts"):
        assert_credited_again(here / run)
    alone = {
        each.episode_id: each.turn_advantages for each in credited_again(here / "whole", overrides=["decay=0"]).credits
    }
    assert any(alone[id] != stored for id, stored in stored_credit(here / "whole").items()), "memory changed credit"
    agentrl("credit", "whole", "--save", cwd=here)
    assert_sound(here / "whole")


def stored_credit(run: Path) -> dict[str, list[float]]:
    """By episode that trained: the advantages of its turns."""
    with RunDir.read(run) as reader:
        found = {id: reader.credit(id) for id in sorted(reader.ids(split="train"))}
    return {id: each.turn_advantages for id, each in found.items() if each is not None}


def assert_credited_again(run: Path) -> None:
    again = {each.episode_id: each.turn_advantages for each in credited_again(run).credits}
    stored = stored_credit(run)
    assert len(stored) >= 16
    for id, advantages in stored.items():
        np.testing.assert_allclose(again[id], advantages, atol=1e-12)


def test_a_critic_learns_before_the_policy(here: Path, warm: list[str]) -> None:
    lines = train(here, "run", "gae", *warm, "train.critic={steps: 20, lr: 0.01, warmup: 1}")
    assert ["value_loss" in line for line in lines] == [True, True]
    assert ["grad_norm" in line for line in lines] == [False, True]


def test_token_credit_reaches_the_tokens(here: Path, warm: list[str]) -> None:
    train(here, "run", "high_entropy", *warm, "credit.share=0.3", iterations=1)
    with RunDir.read(here / "run") as run:
        credit = run.credit(next(iter(sorted(run.ids(split="train")))))
    assert credit is not None
    assert credit.estimator == "high_entropy"  # `show` and `view` read its turns
    assert_sound(here / "run")


@pytest.mark.parametrize(("changes", "words"), [
    (["credit.use=gae"], "gae needs a critic (value), and the recipe has none"),
    (["train.critic={}"], "gigpo does not use a critic"),
    (["train.kl={coef: 0.1, to: teacher}"], "train.kl reads the log-probabilities of a policy that"),
    (["train.ema_reference={}"], "nothing reads train.ema_reference"),
    (["train.teacher=./nowhere", "train.kl={coef: 0.1, to: teacher}"], "there is no folder"),
    (["credit.use=spa", "credit.baseline=group"], "spa needs a critic (progress)"),
    (["credit.use=implicit_prm"], "implicit process reward model"),
    (["credit.use=igpo", "information_gain={answer: gold}"], "task count0: data['gold'] is None"),
    (["credit.use=sweet", "train.reward_model={sees: gold}"], "task count0: data['gold'] is None"),
    (["credit.use=igpo", "credit.pool=joint"], "did you mean 'pools'"),
    (["train.critic={body: copi}"], "'policy' or 'copy'"),
])  # fmt: skip
def test_what_does_not_fit_is_found_before_the_first_episode(here: Path, changes: list[str], words: str) -> None:
    with pytest.raises(AgentRLError) as refused:
        recipe_check(str(here / "counting"), changes)
    assert words in " ".join(str(refused.value).split())


def test_an_iteration_that_teaches_nothing_says_so(here: Path, warm: list[str]) -> None:
    alone = sets(*warm, "train.group_size=1", "credit.use=grpo", "train.iterations=1")
    said = agentrl("train", "counting", "--out", "run", *alone, cwd=here)
    text = " ".join((said.stdout + said.stderr).split())
    assert "nothing to learn from, every advantage is 0" in text
    assert "groups of 1 scored episodes" in text, text
    assert "the same state" not in text, "grpo reads none"


def test_states_that_never_recur_are_named(here: Path, warm: list[str]) -> None:
    code = here / "counting" / "task.py"
    unlike = "def state_key(self): return __import__('uuid').uuid4().hex"
    code.write_text(code.read_text().replace("def state_key(self): return str(self.count)", unlike))
    said = agentrl("train", "counting", "--out", "run", *sets(*warm, "credit=gagpo", "train.iterations=2"), cwd=here)
    text = " ".join((said.stdout + said.stderr).split())
    assert "every advantage is 0, and no two turns met the same state: state_key() of the tools or the agent" in text
    assert text.count("no two episodes met the same state, and gagpo compares turns at equal states -> a coarser") == 1
