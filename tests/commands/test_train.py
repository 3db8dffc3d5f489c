"""`agentrl train` and `eval` from end to end: resume after a kill, replay, checkpoints."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.loader import load_recipe
from agentrl.rollout.builder import build
from agentrl.rollout.player import LocalPlayers
from agentrl.store.run_dir import RunDir
from agentrl.train.assembly import training
from agentrl.types.reporter import Reporter
from tests.command import Started, agentrl
from tests.store.make import make_episode

TRAINING = """\
agent: {format: tags, max_turns: 6, describe_tools: false}
model: {scratch: {hidden: 32, layers: 1, heads: 2, vocab_size: 300, max_context: 256}}
sampling: {max_tokens: 8}
credit: {use: gigpo}
warm_start: {script: hasty, episodes: 24, steps: 80, batch: 8, lr: 3.0e-3}
train: {iterations: 5, groups: 3, group_size: 4, minibatch: 6, lr: 1.0e-3, entropy_bonus: 0.01}
eval: {episodes: 12}
"""
TIMES = ("rollout_s", "train_s", "episodes_in_flight", "rollouts_wait_s")
# The canary compares with the last version that is known to have arrived, which a run that goes on knows anew.
CANARY = ("canary_gap", "canary_moved", "canary_arrived", "canary_s")
# Log-probabilities that the engine reported carry the rounding of batches whose make-up depends on timing.
ROUNDED = ("mismatch_mean", "mismatch_max", *CANARY)
EXACT = ("--set", "engine.batch_invariant=true", "--set", "model.device=cpu")
"""With these there is no such rounding."""


@pytest.fixture
def trainable(counting: Path) -> Path:
    (counting / "recipe.yaml").write_text((counting / "recipe.yaml").read_text() + TRAINING)
    return counting


def metrics(run: Path, but_for: tuple[str, ...] = ROUNDED) -> list[dict[str, Any]]:
    with RunDir.read(run) as reader:
        lines = reader.metrics()
    return [{k: v for k, v in line.items() if k not in (*TIMES, *but_for, "at")} for line in lines]


def train(here: Path, out: str, *more: str) -> None:
    agentrl("train", "counting", "--out", out, *more, cwd=here)


def test_a_killed_training_continues_to_the_same_metrics(trainable: Path) -> None:
    here = trainable.parent
    train(here, "whole", *EXACT)
    expected = metrics(here / "whole", but_for=CANARY)
    assert [(m["split"], m["iteration"]) for m in expected] == [
        *(("sft", k) for k in range(10, 81, 10)), ("eval", 0), *(("train", k) for k in range(1, 6)), ("eval", 5)
    ]  # fmt: skip
    # Killed in the first evaluation, in rollouts, and after the last checkpoint.
    for moment in ("eval/00000", "train/00000", "train/00003", "eval/00005"):
        process = Started("-m", "agentrl.cli", "train", "counting", "--out", "killed", *EXACT, cwd=here)
        for _ in range(3000):
            time.sleep(0.01)
            if (here / "killed" / "index.sqlite").exists():
                with RunDir.read(here / "killed") as reader:
                    if any(id.startswith(moment) for id in reader.ids()):
                        break
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    train(here, "killed", *EXACT)
    assert metrics(here / "killed", but_for=CANARY) == expected
    assert agentrl("check", "killed", cwd=here).returncode == 0


def test_training_on_a_foreign_run_is_refused_at_once(trainable: Path) -> None:
    here = trainable.parent
    with RunDir.create(here / "foreign", {"recipe": {}, "command": "proxy"}) as run:
        run.add(make_episode("session-1", reward=1.0))
    refused = agentrl("train", "counting", "--engine", "replay:foreign", "--out", "run", cwd=here, ok=False)
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: foreign: has 0 of the 12 episodes to replay")
    assert "'train/00000/000-count0#0', and has 'session-1'" in refused.stderr
    assert "train.group_size" in refused.stderr
    assert not (here / "run").exists(), "no demonstration was played, and nothing was trained"


def test_training_on_a_replay_repeats_the_training(trainable: Path) -> None:
    here = trainable.parent
    train(here, "first")
    train(here, "again", "--engine", "replay:first")
    assert metrics(here / "again") == metrics(here / "first")


def test_a_checkpoint_is_a_model_and_can_be_evaluated(trainable: Path) -> None:
    here = trainable.parent
    train(here, "run", "--set", "train.iterations=2")
    from transformers import AutoModelForCausalLM

    newest = here / "run" / "checkpoints" / "it-00002"
    assert AutoModelForCausalLM.from_pretrained(newest).config.hidden_size == 32
    for what in ("run", str(newest)):
        printed = agentrl("eval", what, "--n", "10", "--json", "--out", f"eval-{Path(what).name}", cwd=here).stdout
        found = json.loads(printed)
        assert (found["episodes"], found["failed"]) == (10, 0)
    people = agentrl("eval", "run", "--n", "2", cwd=here).stdout
    assert "agentrl show runs/counting-eval" in people
    assert (here / "run" / "curve.png").stat().st_size > 1000
    page = agentrl("view", "run", cwd=here).stdout.strip()
    assert "count1" in (here / page).read_text()


def test_the_engine_and_the_trainer_agree_on_log_probabilities(trainable: Path) -> None:
    here = trainable.parent
    train(here, "run", "--set", "train.iterations=2")
    with RunDir.read(here / "run") as reader:
        gaps = [m["mismatch_max"] for m in reader.metrics() if m["split"] == "train"]
    assert len(gaps) == 2
    assert max(gaps) < 1e-4


def test_prompts_that_leave_no_room_are_refused_before_the_first_episode(trainable: Path) -> None:
    here, long = trainable.parent, f"agent.system={' '.join(str(k * k) for k in range(300))}"
    said = r"error: tasks: no prompt of the first 32 tasks leaves room for a reply: the shortest has \d+ tokens, and "
    refused = agentrl("train", "counting", "--out", "run", "--set", long, cwd=here, ok=False)
    assert re.search(f"{said}the context 256\n  -> shorter instructions, agent.system", refused.stderr)
    with RunDir.read(here / "run") as reader:
        assert {episode.split for episode in reader.episodes()} == {"demo"}
    train(here, "other", "--set", "train.iterations=1")
    refused = agentrl("eval", "other", "--out", "eval", "--set", long, cwd=here, ok=False)
    assert re.search(said, refused.stderr)


def test_a_loop_that_python_makes_samples_as_the_recipe_says(trainable: Path) -> None:
    """Its engine knows stop strings, which calls in tags end with."""
    train(trainable.parent, "first", "--set", "train.iterations=1")
    model = f"model={{path: {trainable.parent}/first/checkpoints/it-00001}}"
    recipe = load_recipe(str(trainable), ["train.iterations=1", "train.groups=2", "warm_start=null", model])
    with RunDir.create(trainable / "run", {"command": "train"}) as run:

        async def main() -> None:
            async with training(build(recipe), run, Reporter(), LocalPlayers(None)) as loop:
                await loop.run()

        asyncio.run(main())
        texts = [turn.text for episode in run.episodes(split="train") for turn in episode.turns]
        assert [line["iteration"] for line in run.metrics() if line["split"] == "train"] == [1]
    assert texts
    assert all(text.count("</add>") <= 1 for text in texts)
    assert any(text.endswith("</add>") for text in texts)


def test_a_finished_training_can_be_extended(trainable: Path) -> None:
    here = trainable.parent
    train(here, "run", "--set", "train.iterations=2")
    train(here, "run", "--set", "train.iterations=3")
    train(here, "run", "--set", "train.iterations=1")  # nothing is left to do
    assert [m["iteration"] for m in metrics(here / "run") if m["split"] == "train"] == [1, 2, 3]
    other = agentrl("train", "counting", "--out", "run", "--set", "train.lr=0.5", cwd=here, ok=False)
    assert "recipe.train.lr: 0.001 -> 0.5" in other.stderr


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rewards={}", "no rewards"),
        ("train.loss=pp_clip", "ppo_clip"),
        ("tools=[answer]", "no tool has a state_key()"),
    ],
)
def test_what_training_needs_is_checked_before_it_starts(trainable: Path, override: str, expected: str) -> None:
    for command in (["recipe", "check", "counting"], ["train", "counting", "--out", "run"]):
        done = agentrl(*command, "--set", override, cwd=trainable.parent, ok=False)
        assert done.returncode == 1
        assert expected in done.stderr
    assert not (trainable.parent / "run").exists()
