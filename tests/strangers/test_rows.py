"""Rows of other people's data sets: what is learned and shown of them, which task they are, or what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.tables import RowSource
from agentrl.curriculum.task_source import load_tasks
from agentrl.tools.schema import inner_definition
from agentrl.training.stages.files import conversations, preferences
from agentrl.training.supervised.conversation import SupervisedConversation
from agentrl.types.errors import TaskError

from .cases import Case, played

TOOLS = {"search": {"query": {"type": "string"}}, "add": {"by": {"type": "integer"}}}
DEFINITIONS = [
    {
        "type": "function",
        "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": p}},
    }
    for name, p in TOOLS.items()
]
PARSER = parser_named("hermes", DEFINITIONS)
TOKENIZER = ByteTokenizer()
RENDERER = Renderer(TOKENIZER, PARSER, [])
RIGHT = ("trains", "shown", "controls", "instruction", "refused", "warned")
"""What a case may say, one of them at least: a part of every span that is learned, in order; what is shown, in order;
the number of control tokens; the instruction as roles and texts, in order; words of the refusal; words of the
warning, or none."""


@pytest.mark.parametrize(("file", "case"), played("rows", ["row"], [*RIGHT, "tasks", "data", "id", "tools", "fields"]))
def test_a_row(file: str, case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert set(case) & set(RIGHT), "a case says what is right"
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(case["row"]) + "\n")
    if "refused" in case:
        with pytest.raises(TaskError) as refused:
            checked(file, case, path)
        assert case["refused"] in str(refused.value)
        assert "rows.jsonl:1" in str(refused.value)
    else:
        checked(file, case, path)
    if "warned" in case:
        assert (case["warned"] in caplog.text) if case["warned"] else not caplog.messages


def checked(file: str, case: Case, path: Path) -> None:
    """Reads the row, and compares it with what the case says."""
    source = RowSource("jsonl", str(path), file)
    if file == "tasks":
        task_of(case, path)
    elif file == "sft":
        told(case, conversations(source, Path(), PARSER, **case.get("fields", {})))
    else:
        told(case, [one for one, _ in preferences(source, Path(), PARSER, paired=False)])


def told(case: Case, found: list[SupervisedConversation]) -> None:
    samples = [sample for each in found for sample in each.samples(RENDERER)]
    tokens = [pair for s in samples for pair in zip(s.token_ids.tolist(), s.loss_mask.tolist(), strict=True)]
    text = TOKENIZER.decode([token for token, _ in tokens])
    at = 0
    for said in case.get("shown", []):
        at = text.index(said, at) + len(said)
    spans = [TOKENIZER.decode(span) for span in learned(tokens)]
    if "trains" in case:
        assert len(spans) == len(case["trains"]), spans
        assert all(part in span for part, span in zip(case["trains"], spans, strict=True)), spans
    assert all(span.endswith("<|im_end|>") for span in spans)
    if "controls" in case:
        assert sum(token > 255 for token, _ in tokens) == case["controls"]


def learned(tokens: list[tuple[int, bool]]) -> list[list[int]]:
    """The spans of tokens that are learned."""
    spans: list[list[int]] = []
    for (token, trains), (_, before) in zip(tokens, [(0, False), *tokens], strict=False):
        if trains and not before:
            spans.append([])
        if trains:
            spans[-1].append(token)
    return spans


def task_of(case: Case, path: Path) -> None:
    settings = TaskSettings.model_validate({"jsonl": path.name, **case["tasks"]})
    (task,) = load_tasks(settings, path.parent, seed=0).tasks
    said: list[Any] = [text for message in task.instruction for text in (message["role"], message["content"])]
    assert said == case["instruction"]
    assert {key: task.data[key] for key in case.get("data", {})} == case.get("data", {})
    assert task.id == case.get("id", task.id)
    names = [each if isinstance(each, str) else inner_definition(each)["name"] for each in task.tools or []]
    assert names == case.get("tools", [])
