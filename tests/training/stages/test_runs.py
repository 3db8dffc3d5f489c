"""Stored episodes as what a stage learns from: whose they are, which are left out, exact tokens or text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.loader import load_recipe
from agentrl.store.run_dir import RunDir
from agentrl.training.stages.data import Example, examples_of, fitting, offline_credit, stored_for
from agentrl.training.stages.runs import is_of, samples_of
from agentrl.training.stages.stage import Stage, stages_of
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.types.episode import Context, Episode, Node, Parent, Turn
from agentrl.types.errors import RecipeError, StoreError, TrainError
from agentrl.types.task import Task

PARSER = parser_named("hermes", [])
RENDERER = Renderer(ByteTokenizer(), PARSER, [])
PROMPT = [{"role": "user", "content": "go"}]


def episode(id: str, reward: float | None, text: str = "hi", **changes: Any) -> Episode:
    """An episode of one turn as a policy of bytes samples it."""
    tokens = [*text.encode(), 257]
    nodes = [
        Node(parent=-1, kind="prompt", token_ids=RENDERER.start(PROMPT)),
        Node(parent=0, kind="sampled", token_ids=tokens, logprobs=[-0.5] * len(tokens)),
    ]
    fields = {
        "group_id": id.rpartition("#")[0], "status": "done", "prompt": PROMPT, "nodes": nodes, "reward": reward,
        "turns": [Turn(index=0, node=1, text=text, finish="stop")], "temperature": 0.7, "split": id.split("/")[-2],
    }  # fmt: skip
    return Episode(id=id, task=Task.of("t", "go"), **{**fields, **changes})


def stage_of(folder: Path, text: str, index: int = -1) -> Stage:
    (folder / "recipe.yaml").write_text(f"name: x\ntasks: ./t.py:x\nscripts: {{s: ./t.py:s}}\nstages: [{text}]\n")
    return stages_of(load_recipe(str(folder)))[index]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path / "run", {"recipe": {}})
    for id, reward in [
        ("learn/train/g0#0", 0.2), ("learn/train/g0#1", 1.0), ("learn/train/g0#2", 1.0), ("learn/train/g1#0", 0.5),
        ("learn/train/g1#1", 0.5), ("learn/eval/g0#0", 1.0), ("other/train/g9#0", 1.0), ("learn/train/g2#0", None),
    ]:  # fmt: skip
        run.add(episode(id, reward, text=id[-1]))
    run.add(episode("learn/train/g3#0", None, status="user_error"))
    return run


def chosen(folder: Path, run: RunDir, text: str) -> list[tuple[str, float]]:
    stage = stage_of(folder, text)
    with stored_for(stage, run) as stored:
        return [(each.conversation.id, each.label) for each in examples_of(stage, PARSER, stored, [])]


LEARN = "{name: learn, rl: }, "


def test_a_stages_own_episodes_that_earned_enough(tmp_path: Path, run: RunDir) -> None:
    found = chosen(tmp_path, run, LEARN + "{name: b, sft: {run: learn, min_reward: 0.5}}")
    assert [id for id, _ in found] == ["learn/train/g0#1", "learn/train/g0#2", "learn/train/g1#0", "learn/train/g1#1"]
    run.close()
    elsewhere = chosen(tmp_path, run, "{name: b, sft: {run: ./run}}")
    assert {id for id, _ in elsewhere} >= {"other/train/g9#0", "learn/train/g0#0"}
    assert not any("eval" in id for id, _ in elsewhere), "evaluations are not learned from"


def test_credit_gives_the_turns_of_stored_episodes_their_advantages(tmp_path: Path, run: RunDir) -> None:
    """Of g0 the mean is 2.2 / 3; the one episode of g2 was not scored, and those of g1 are equal."""
    stage = stage_of(tmp_path, LEARN + "{name: b, sft: {run: learn, credit: {use: returns, std: none}, loss: awr}}")
    with stored_for(stage, run) as stored:
        found = [each.samples(RENDERER, 64) for each in examples_of(stage, PARSER, stored, [])]
    given = [{round(float(value), 3) for value in sample.advantage[sample.loss_mask]} for (sample,) in found]
    assert given == [{-0.533}, {0.267}, {0.267}, {0.0}, {0.0}]
    assert not any(sample.advantage[~sample.loss_mask].any() for (sample,) in found)
    plain = stage_of(tmp_path, LEARN + "{name: b, sft: {run: learn}}")
    with stored_for(plain, run) as stored:
        (sample,) = examples_of(plain, PARSER, stored, [])[0].samples(RENDERER, 64)
    assert set(sample.advantage[sample.loss_mask]) == {1.0}


def test_credit_of_stored_episodes_keeps_to_what_is_recorded(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, LEARN + "{name: b, sft: {run: learn, credit: turn_gae}}")
    with pytest.raises(RecipeError, match=r"stages.1.sft.credit(.|\n)*turn_gae needs value, which only reinforcement"):
        offline_credit(stage)
    with pytest.raises(RecipeError, match="'credit' needs 'run'"):
        stage_of(tmp_path, "{name: b, sft: {script: s, credit: returns}}")


def test_the_best_and_the_worst_of_a_group(tmp_path: Path, run: RunDir) -> None:
    found = chosen(tmp_path, run, LEARN + "{name: b, preference: {run: learn}}")
    assert found == [("learn/train/g0#1", 1.0), ("learn/train/g0#0", 0.0)]
    with pytest.raises(TrainError, match=r"stages.1.preference.run: none of 2 groups has two episodes of different"):
        chosen(tmp_path, run, LEARN + "{name: b, preference: {run: learn, min_gap: 0.9}}")
    labelled = chosen(tmp_path, run, LEARN + "{name: b, preference: {run: learn, threshold: 0.5, loss: kto}}")
    assert [label for _, label in labelled] == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_rewards_of_turns_make_an_episode_good(tmp_path: Path, run: RunDir) -> None:
    """Its outcome is 0; what it earned is the index's reward, which `min_reward` and pairs read, too."""
    paid = episode("learn/train/g7#0", 0.0)
    paid = msgspec.structs.replace(paid, turns=[msgspec.structs.replace(turn, reward=0.7) for turn in paid.turns])
    run.add(paid)
    labelled = chosen(tmp_path, run, LEARN + "{name: b, preference: {run: learn, threshold: 0.6, loss: kto}}")
    assert dict(labelled)["learn/train/g7#0"] == 1.0
    earned = chosen(tmp_path, run, LEARN + "{name: b, sft: {run: learn, min_reward: 0.7}}")
    assert "learn/train/g7#0" in dict(earned)


def test_pairs_of_different_prompts_are_refused(tmp_path: Path, run: RunDir) -> None:
    run.add(episode("learn/train/g5#0", 0.0))
    run.add(episode("learn/train/g5#1", 1.0, prompt=[{"role": "user", "content": "go, with a hint"}]))
    with pytest.raises(TrainError, match="of one group have different prompts"):
        chosen(tmp_path, run, LEARN + "{name: b, preference: {run: learn}}")


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ("sft: {run: learn, min_reward: 0.5}", True),
        ("preference: {run: learn}", True),
        ("preference: {run: learn, threshold: 0.5, loss: kto}", True),
        ("sft: {run: learn}", False),
    ],
)
def test_seats_with_outcomes_of_their_own_are_not_chosen_by_one_reward(
    tmp_path: Path, run: RunDir, settings: str, refused: bool
) -> None:
    """The turns of who lost would be imitated with those of who won."""
    other = {"player 1": Context(role="player 1", prompt=PROMPT, outcome=0.0)}
    run.add(episode("learn/train/g6#0", 1.0, contexts=other), episode("learn/train/g6#1", 0.0, contexts=other))
    if not refused:
        assert ("learn/train/g6#1", 0.0) in chosen(tmp_path, run, f"{LEARN}{{name: b, {settings}}}")
        return
    with pytest.raises(TrainError, match=r"seats of an episode have outcomes of their own(?s:.)*role_grpo"):
        chosen(tmp_path, run, f"{LEARN}{{name: b, {settings}}}")


def test_what_is_missing_is_named(tmp_path: Path, run: RunDir) -> None:
    with pytest.raises(TrainError, match="the best of 5 earned 1") as error:
        chosen(tmp_path, run, LEARN + "{name: b, sft: {run: learn, min_reward: 2}}")
    assert "stages.1.sft.run" in str(error.value.place)
    with pytest.raises(StoreError, match="there is no such folder"):
        chosen(tmp_path, run, "{name: b, sft: {run: ./nowhere}}")


def test_a_policys_own_tokens_are_kept(tmp_path: Path) -> None:
    played = episode("train/g#0", 1.0, text="well")
    assert is_of(played, RENDERER)
    (sample,) = samples_of(played, RENDERER, label=1.0)
    assert sample.token_ids[sample.loss_mask].tolist() == [*b"well", 257]
    assert (sample.temperature, sample.reward, sample.behaviour_logprob.any()) == (1.0, 1.0, False)
    assert sample.advantage[sample.loss_mask].tolist() == [1.0] * 5
    again = SupervisedConversation.of(played).samples(RENDERER, 1.0)[0]
    assert np.array_equal(again.token_ids, sample.token_ids)


@pytest.mark.parametrize(
    "changes",
    [
        {"trainable": False},
        {"turns": [Turn(index=0, node=1, text="else", finish="stop")]},
        {"nodes": [Node(parent=-1, kind="prompt", token_ids=[9999]),
                   Node(parent=0, kind="sampled", token_ids=[*b"well", 257], logprobs=[0.0] * 5)]},
    ],
)  # fmt: skip
def test_anothers_tokens_are_replaced_by_the_text(changes: dict[str, Any]) -> None:
    played = msgspec.structs.replace(episode("train/g#0", 1.0, text="well"), **changes)
    assert not is_of(played, RENDERER)
    (sample,) = samples_of(played, RENDERER)
    assert sample.token_ids.max() < RENDERER.tokenizer.vocab_size
    assert ByteTokenizer().decode(sample.token_ids[sample.loss_mask].tolist()) == played.turns[0].text + "<|im_end|>"


def test_what_is_longer_than_the_context_is_left_out_with_its_pair(tmp_path: Path, run: RunDir) -> None:
    run.add(episode("learn/train/g7#0", 0.0, text="x" * 50))
    run.add(episode("learn/train/g7#1", 1.0, text="y"))
    stage = stage_of(tmp_path, LEARN + "{name: b, preference: {run: learn}}")
    with stored_for(stage, run) as stored:
        examples = examples_of(stage, PARSER, stored, [])
    notes: list[str] = []
    kept = fitting(examples, RENDERER, 60, notes.append, paired=True)
    assert {each.group_id for each in kept} == {"learn/train/g0"}
    assert notes == ["2 of 4 conversations are longer than the context, or paired with one that is: they are left out"]
    with pytest.raises(TrainError, match="none of 2 pairs fits the context of 9 tokens"):
        fitting(examples, RENDERER, 9, notes.append, paired=True)


def test_of_labelled_episodes_each_is_left_out_for_itself(tmp_path: Path, run: RunDir) -> None:
    run.add(episode("learn/train/g0#3", 0.0, text="x" * 50))
    stage = stage_of(tmp_path, LEARN + "{name: b, preference: {run: learn, threshold: 0.5, loss: kto}}")
    with stored_for(stage, run) as stored:
        examples = examples_of(stage, PARSER, stored, [])
    notes: list[str] = []
    kept = {each.episode_id for each in fitting(examples, RENDERER, 60, notes.append)}
    assert kept == {*(f"learn/train/g0#{k}" for k in range(3)), "learn/train/g1#0", "learn/train/g1#1"}
    assert notes == ["1 of 6 conversations are longer than the context: they are left out"]


def fork(id: str, reward: float, *texts: str, taken: int) -> Episode:
    """An episode of several turns, the first of which its parent sampled."""
    nodes = [Node(parent=-1, kind="prompt", token_ids=RENDERER.start(PROMPT))]
    turns = []
    for k, text in enumerate(texts):
        tokens = [*text.encode(), 257]
        kind: Any = "spoken" if k < taken else "sampled"
        logprobs = None if k < taken else [-0.5] * len(tokens)
        nodes.append(Node(parent=len(nodes) - 1, kind=kind, token_ids=tokens, logprobs=logprobs))
        turns.append(Turn(index=k, node=len(nodes) - 1, text=text, finish="stop"))
        nodes.append(Node(parent=len(nodes) - 1, kind="observation", token_ids=[*b"more"]))
    parent = Parent(run="", episode="learn/train/g9#0", turn=taken) if taken else None
    return episode(id, reward, nodes=nodes, turns=turns, parent=parent)


@pytest.mark.parametrize("trainable", [True, False])
def test_a_fork_and_its_parent_are_compared_over_all_they_said(tmp_path: Path, run: RunDir, trainable: bool) -> None:
    pair = [
        fork("learn/train/g9#0", 0.0, "same", "bad", taken=0),
        fork("learn/train/g9#0.1", 1.0, "same", "ok", taken=1),
    ]
    for each in pair:
        run.add(msgspec.structs.replace(each, trainable=trainable))
    stage = stage_of(tmp_path, LEARN + "{name: b, preference: {run: learn}}")
    with stored_for(stage, run) as stored:
        examples = [each for each in examples_of(stage, PARSER, stored, []) if "g9" in each.conversation.id]
    said = [
        ByteTokenizer().decode(sample.token_ids[sample.loss_mask].tolist()).replace("<|im_end|>", " ")
        for each in examples
        for sample in each.samples(RENDERER, 1024)
    ]
    assert said == ["same ok ", "same bad "]


@pytest.mark.parametrize("paired", [False, True])
def test_an_episode_without_a_reply_is_left_out_with_its_pair(paired: bool) -> None:
    silent = episode("learn/train/g7#0", 1.0, text="")
    nodes = [*silent.nodes[:1], msgspec.structs.replace(silent.nodes[1], token_ids=[], logprobs=[])]
    silent = msgspec.structs.replace(silent, nodes=nodes)
    others = [episode("learn/train/g7#1", 0.0), episode("learn/train/g8#0", 0.0)]
    notes: list[str] = []
    kept = fitting([Example.of(each) for each in (silent, *others)], RENDERER, 60, notes.append, paired=paired)
    assert [each.episode_id for each in kept] == [each.id for each in others[paired:]]
    assert f"{1 + paired} of 3 conversations have no reply to train on" in notes[0]
    with pytest.raises(TrainError, match="no conversation has a reply to train on"):
        fitting([Example.of(silent)], RENDERER, 60, notes.append)
