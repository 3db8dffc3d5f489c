"""`agentrl train` and `eval` from end to end: resume after a kill, replay, checkpoints."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from agentrl.api.eval import eval
from agentrl.api.recipe_check import check as recipe_check
from agentrl.api.train import train as train_recipe
from agentrl.config.loader import load_recipe
from agentrl.preflight.plan import plan
from agentrl.rollouts.runner import LocalRunners
from agentrl.store.run_dir import RunDir
from agentrl.training.assembly import training
from agentrl.types.errors import AgentRLError, StoreError
from agentrl.types.reporter import Reporter
from tests.command import agentrl, python, sets
from tests.counting import CANARY, EXACT, TRAINING, metrics
from tests.sound import assert_sound
from tests.store.make import make_episode

pytestmark = pytest.mark.slow

__all__ = ["TRAINING"]


def train(here: Path, out: str, *more: str) -> None:
    agentrl("train", "counting", "--out", out, *more, cwd=here)


def test_a_killed_training_continues_to_the_same_metrics(trainable: Path, trained_run: Path) -> None:
    here = trainable.parent
    expected = metrics(trained_run, but_for=CANARY)
    assert [(m["split"], m["iteration"]) for m in expected] == [
        *(("sft", k) for k in range(10, 81, 10)), ("eval", 0), *(("train", k) for k in range(1, 6)), ("eval", 5)
    ]  # fmt: skip
    # In the first evaluation, in the first rollouts, in those of the fourth iteration, and after the last checkpoint.
    deaths = "rollout:27,rollout:13,rollout:37,rollout:22"
    arguments = ("train", "counting", "--out", "killed", *sets(*EXACT))
    told = python("-m", "tests.commands.lives", deaths, *arguments, cwd=here).stdout
    assert [line.split()[-1] for line in told.splitlines()] == ["it-00000", "it-00000", "it-00003", "it-00005"]
    assert metrics(here / "killed", but_for=CANARY) == expected
    assert_sound(here / "killed")


def test_training_on_a_foreign_run_is_refused_at_once(trainable: Path) -> None:
    here = trainable.parent
    with RunDir.create(here / "foreign", {"recipe": {}, "command": "proxy"}) as run:
        run.add(make_episode("session-1", reward=1.0))
    refused = agentrl("train", "counting", "--replay", "foreign", "--out", "run", cwd=here, ok=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: foreign: has 0 of the 12 episodes to replay")
    assert "'train/00000/000-count0#0', and has 'session-1'" in refused.stderr
    assert "train.group_size" in refused.stderr
    assert not (here / "run").exists(), "no demonstration was played, and nothing was trained"


def test_training_on_a_replay_repeats_the_training(trainable: Path) -> None:
    here, few = trainable.parent, sets("train.iterations=2", "warm_start.steps=20")
    train(here, "first", *few)
    train(here, "again", "--replay", "first", *few)
    assert metrics(here / "again") == metrics(here / "first")
    with RunDir.read(here / "first") as reader:
        gaps = [m["mismatch_max"] for m in reader.metrics() if m["split"] == "train"]
    assert len(gaps) == 2
    assert max(gaps) < 1e-4, "the engine and the trainer agree on log-probabilities"


def test_a_checkpoint_is_a_model_and_can_be_evaluated(tmp_path: Path, trained_run: Path, trained_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(trained_model).config.hidden_size == 32
    found = json.loads(agentrl("eval", str(trained_model), "--n", "10", "--json", cwd=tmp_path).stdout)
    assert (found["episodes"], found["failed"]) == (10, 0)
    shutil.copytree(trained_run, tmp_path / "run")
    people = agentrl("eval", "run", "--n", "2", "--out", "evaluated", cwd=tmp_path).stdout
    assert "agentrl show evaluated" in people
    agentrl("view", "run", "--export", "page.html", cwd=tmp_path)
    assert "count1" in (tmp_path / "page.html").read_text()


def test_prompts_that_leave_no_room_are_refused_before_the_first_episode(trainable: Path, trained_run: Path) -> None:
    here, long = trainable.parent, f"agent.system={' '.join(str(k * k) for k in range(300))}"
    said = r"tasks: no prompt of the first 32 tasks leaves room for a reply: the shortest has \d+ tokens, and "
    refused = agentrl("train", "counting", "--out", "run", "--set", long, cwd=here, ok=False)
    assert re.search(f"error: {said}the context 256\n  -> shorter instructions, agent.system", refused.stderr)
    with RunDir.read(here / "run") as reader:
        assert {episode.split for episode in reader.episodes()} == {"demo"}
    with pytest.raises(AgentRLError, match=said):
        eval(trained_run, overrides=[long], out=here / "eval", reporters=())


def test_a_loop_that_python_makes_samples_as_the_recipe_says(trainable: Path, trained_model: Path) -> None:
    """Its engine knows stop strings, which calls in tags end with."""
    model = f"model={{path: {trained_model}}}"
    recipe = load_recipe(str(trainable), ["train.iterations=1", "train.groups=2", "warm_start=null", model])
    with RunDir.create(trainable / "run", {"command": "train"}) as run:

        async def main() -> None:
            async with training(plan(recipe).rl[-1], run, Reporter(), LocalRunners(None)) as loop:
                await loop.run()

        asyncio.run(main())
        texts = [turn.text for episode in run.episodes(split="train") for turn in episode.turns]
        assert [line["iteration"] for line in run.metrics() if line["split"] == "train"] == [1]
    assert texts
    assert all(text.count("</add>") <= 1 for text in texts)
    assert any(text.endswith("</add>") for text in texts)


def test_a_finished_training_can_be_extended(trainable: Path, trained_run: Path) -> None:
    here = trainable.parent
    shutil.copytree(trained_run, here / "run")
    train(here, "run", *sets(*EXACT, "train.iterations=6"))
    train(here, "run", *sets(*EXACT, "train.iterations=1"))  # nothing is left to do
    assert [m["iteration"] for m in metrics(here / "run") if m["split"] == "train"] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(StoreError, match="recipe.train.lr: 0.001 -> 0.5"):
        train_recipe(trainable, overrides=[*EXACT, "train.lr=0.5"], out=here / "run", reporters=())


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rewards={}", "no rewards"),
        ("train.loss=pp_clip", "ppo_clip"),
        ("tools=[answer]", "no tool has a state_key()"),
    ],
)
def test_what_training_needs_is_checked_before_it_starts(trainable: Path, override: str, expected: str) -> None:
    out = trainable.parent / "run"
    for command in (partial(recipe_check, overrides=[override]), partial(train_recipe, overrides=[override], out=out)):
        with pytest.raises(AgentRLError) as refused:
            command(str(trainable))
        assert expected in str(refused.value)
    assert not out.exists()
