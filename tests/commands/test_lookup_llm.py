"""recipes/lookup-llm: what is asked, what is demonstrated, and one iteration with a model built on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.store.run_dir import RunDir
from agentrl.types.paths import data_path
from agentrl.types.task import Task
from tests.command import agentrl, sets
from tests.sound import assert_sound, played

SMALL = [
    "model={scratch: {hidden: 32, layers: 2, heads: 2, vocab_size: 400, max_context: 512}, dtype: bfloat16}",
    "warm_start.episodes=48", "warm_start.steps=20", "warm_start.lr=3.0e-3", "train.trainable.top_layers=1",
    "train.iterations=1", "train.groups=2", "train.group_size=4", "eval.episodes=8",
]  # fmt: skip


def questions(**given: Any) -> list[Task]:
    return list(load_object("./task.py:questions", data_path("recipes", "lookup-llm"))(**given))


def test_held_out_questions_are_about_other_people() -> None:
    train, held_out = questions(n=300), questions(n=300, held_out=True)
    people = [{name for task in tasks for name in task.data["cards"]} for tasks in (train, held_out)]
    assert all(len(names) > 30 for names in people)
    assert not people[0] & people[1]
    assert questions(n=3, seed=1) != questions(n=3, seed=2)


def test_only_the_card_that_was_asked_for_has_the_answer() -> None:
    for task in questions(n=200):
        cards, start, relation = (task.data[name] for name in ("cards", "start", "relation"))
        assert f"{start}'s {relation}" in task.instruction[0]["content"]
        holders = [name for name, card in cards.items() if card["colour"] == task.data["answer"]]
        assert holders == [cards[start][relation]]
        assert holders[0] not in (start, cards[start]["rival" if relation == "friend" else "friend"])


@pytest.mark.slow
@pytest.mark.parametrize("held_out", ["true", "false"])
def test_the_oracle_answers_every_question(tmp_path: Path, held_out: str) -> None:
    run = played("lookup-llm", 64, "oracle", tmp_path / "run", f"tasks.args.held_out={held_out}")
    episodes = list(run.whole_episodes())
    assert len(episodes) == 64
    assert {(episode.reward, len(episode.turns)) for episode in episodes} == {(1.0, 3)}


@pytest.mark.slow
def test_demonstrations_are_often_wrong(tmp_path: Path) -> None:
    episodes = [*played("lookup-llm", 400, "guesser", tmp_path / "run").whole_episodes()]
    followed = [episode.turns[1].calls[0].arguments["name"] for episode in episodes]
    asked = [task.data["cards"][task.data["start"]][task.data["relation"]] for task in (e.task for e in episodes)]
    # Shares of 400 draws: within three standard deviations of .65, and of .65 x .55.
    assert sum(a == b for a, b in zip(followed, asked, strict=True)) / 400 == pytest.approx(0.65, abs=0.075)
    assert sum(bool(episode.reward) for episode in episodes) / 400 == pytest.approx(0.36, abs=0.075)


@pytest.mark.slow
def test_one_iteration_with_a_small_model(tmp_path: Path) -> None:
    agentrl("train", "lookup-llm", "--out", "run", *sets(*SMALL), cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        metrics = [line for line in run.metrics() if line["split"] != "sft"]
        kinds = [(line["split"], line["iteration"]) for line in metrics]
        held_out = {episode.task.data["start"] for episode in run.episodes(split="eval")}
        played = {episode.task.data["start"] for episode in run.episodes(split="train")}
    assert kinds == [("eval", 0), ("train", 1), ("eval", 1)]
    assert metrics[1]["tokens"] > 0
    assert not held_out & played
    assert_sound(tmp_path / "run")
