"""Examples of stages that learn from files and runs: raw texts, what is refused, and what a finished stage repeats."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.loader import load_recipe
from agentrl.config.train import OptimiserSettings
from agentrl.curriculum.tables import RowSource
from agentrl.preflight.plan import plan
from agentrl.rollouts.runner import LocalRunners
from agentrl.store.run_dir import RunDir
from agentrl.training import checkpoint
from agentrl.training.stages.data import Example, examples_of, fitting, stored_for
from agentrl.training.stages.files import conversations
from agentrl.training.stages.offline import OfflineTraining
from agentrl.training.stages.record import StageRecord
from agentrl.training.stages.stage import Stage, stages_of
from agentrl.training.supervised.conversation import Said, SupervisedConversation
from agentrl.training.supervised.preferences import preference_metrics
from agentrl.types.errors import RenderError, TaskError
from agentrl.types.reporter import Reporter
from agentrl.types.task import Message
from tests.counting import TINY, write
from tests.training.make import make_rows

PARSER = parser_named("hermes", [])
RENDERER = Renderer(ByteTokenizer(), PARSER, [])


def stage_of(folder: Path, text: str, index: int = -1) -> Stage:
    (folder / "recipe.yaml").write_text(f"name: x\ntasks: ./t.py:x\nscripts: {{s: ./t.py:s}}\nstages: [{text}]\n")
    return stages_of(load_recipe(str(folder)))[index]


def lines(folder: Path, *rows: Any) -> None:
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def test_a_file_of_texts_trains_every_token_in_pieces_that_fit(tmp_path: Path) -> None:
    lines(tmp_path, {"text": "abcdefgh"}, {"text": "xyz"})
    stage = stage_of(tmp_path, "{name: read, sft: {text: ./data.jsonl, steps: 1}}")
    examples = examples_of(stage, PARSER, None, [])
    assert [[*each.conversation.texts()] for each in examples] == [["abcdefgh"], ["xyz"]]
    assert [each.conversation.group_id for each in examples] == ["data:1", "data:2"]
    end = ByteTokenizer().stop_ids[0]
    samples = fitting(examples, RENDERER, 6, lambda line: None)
    assert [sample.token_ids.tolist() for sample in samples] == [
        [end, *b"abcde"], [*b"efgh", end], [end, *b"xyz", end],
    ]  # fmt: skip
    assert all(sample.loss_mask.tolist() == [False] + [True] * (len(sample.token_ids) - 1) for sample in samples)
    assert [sample.episode_id for sample in samples] == ["data:1/0", "data:1/1", "data:2/0"]


def test_rows_with_labels_are_examples_with_labels(tmp_path: Path) -> None:
    lines(tmp_path, *({"prompt": "2+2?", "completion": answer, "label": answer == "4"} for answer in ("4", "5")))
    text = "{name: like, preference: {jsonl: ./data.jsonl, steps: 1, loss: kto}}"
    examples = examples_of(stage_of(tmp_path, text), PARSER, None, [])
    assert [each.label for each in examples] == [1.0, 0.0]
    assert [sample.reward for each in examples for sample in each.samples(RENDERER, 256)] == [1.0, 0.0]
    assert [each.episode for each in examples] == [None, None]


def test_preferences_of_an_earlier_stage_are_none_before_the_run(tmp_path: Path) -> None:
    stages = "{name: learn, rl: {}}, {name: prefer, preference: {run: learn, steps: 1}}"
    stage = stage_of(tmp_path, stages)
    with stored_for(stage, None) as stored:
        assert stored is None
        assert examples_of(stage, PARSER, stored, []) == []


def test_a_stage_that_plays_its_episodes_has_no_examples(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a stage of kind rl plays its episodes itself"):
        examples_of(stage_of(tmp_path, "{name: learn, rl: {}}"), PARSER, None, [])


def test_a_conversation_that_the_template_refuses_is_named() -> None:
    class Refusing(Renderer):
        def start(self, messages: Sequence[Message]) -> list[int]:
            raise RenderError("the template drops message 0", place="qwen", remedy="name another template")

    talk = SupervisedConversation("data:3", "data:3", [said("user", "go")], [Said("gone", [])], place="data.jsonl:3")
    assert Example(talk).samples(RENDERER, 256)
    with pytest.raises(RenderError, match="the template drops message 0") as refused:
        Example(talk).samples(Refusing(ByteTokenizer(), PARSER, []), 256)
    assert refused.value.place == "data.jsonl:3", "the row, not the tokenizer"
    assert refused.value.remedy == "name another template"


def test_a_tool_of_a_row_that_the_format_cannot_call_is_named(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "find-it", "parameters": {"type": "object", "properties": {}}}}
    messages = [said("user", "go"), said("assistant", "gone")]
    lines(tmp_path, {"messages": messages}, {"messages": messages, "tools": [tool]})
    source = RowSource("jsonl", str(tmp_path / "data.jsonl"), "stages.0.sft")
    assert len(conversations(source, tmp_path, PARSER)) == 2, "JSON takes any name"
    with pytest.raises(TaskError, match="the tool 'find-it' cannot be called in the format pythonic: ") as refused:
        conversations(source, tmp_path, parser_named("pythonic", []))
    assert str(refused.value.place).endswith("data.jsonl:2")


def test_a_warm_start_without_a_section_train_has_the_default_optimiser(tmp_path: Path) -> None:
    alone, given = (
        stages_of(load_recipe(str(write(tmp_path / name, TINY + more))))[0]
        for name, more in (("alone", ""), ("given", "train: {iterations: 1, token_budget: 77}\n"))
    )
    assert (alone.name, alone.kind) == (given.name, given.kind) == ("warm_start", "sft")
    assert alone.optimiser == OptimiserSettings()
    assert given.optimiser == OptimiserSettings(token_budget=77)


class Notes(Reporter):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def phase(self, name: str, total: int) -> None:
        self.told.append(name)

    def note(self, text: str) -> None:
        self.told.append(text)


async def test_a_stage_that_has_ended_does_nothing_again(tmp_path: Path) -> None:
    recipe = load_recipe(str(write(tmp_path / "counting", TINY + "train: {iterations: 1, groups: 2, group_size: 4}\n")))
    warm = plan(recipe).stages[0]
    run, reporter = RunDir.create(tmp_path / "run", {"recipe": {}}), Notes()
    record = StageRecord(run, warm.stage)
    folder = record.folder(4)
    with checkpoint.writing(folder) as new:
        checkpoint.complete(new, folder, {}, record.state(4, ended=True, since=[]))
    await OfflineTraining(warm, run, reporter, LocalRunners(None)).train()
    assert reporter.told == []
    assert [path.name for path in record.checkpoints.iterdir()] == [folder.name]
    assert list(run.episodes()) == [], "no demonstration was played"


def test_a_gold_reply_is_not_compared_with_the_pair() -> None:
    chosen, rejected, gold = (
        dataclasses.replace(row, reward=reward, group_id="g", episode_id=str(reward))
        for row, reward in zip(make_rows(groups=3, size=1), (1.0, 0.0, 2.0), strict=False)
    )
    logprobs = [np.full(len(row.token_ids), -x, np.float32) for row, x in ((chosen, 1), (rejected, 3), (gold, 50))]
    pair = preference_metrics([chosen, rejected], logprobs[:2], None)
    assert pair == {"chosen": -1.0, "rejected": -3.0, "accuracy": 1.0, "margin": 2.0}
    assert preference_metrics([chosen, rejected, gold], logprobs, None) == pair
