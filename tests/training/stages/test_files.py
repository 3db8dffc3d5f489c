"""Files of conversations and preferences: every form, and what is said of rows that are none."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet as parquet
import pytest

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.curriculum.tables import RowSource
from agentrl.estimators.pairs import best_two_and_worst
from agentrl.training.stages.files import conversations, preferences, raw_texts
from agentrl.types.errors import TaskError, TrainError
from agentrl.types.sample import TrainingSample

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Count on.",
        "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}},
    },
}
PARSER = parser_named("hermes", [ADD])


def rows(path: Path, section: str = "stages.0.sft", kind: str = "jsonl") -> RowSource:
    return RowSource(kind, str(path), section)


def said(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "data.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def shown(sample: TrainingSample) -> str:
    """The text of a sample, what trains in brackets."""
    out, inside = "", False
    for token, trains in zip(sample.token_ids.tolist(), sample.loss_mask.tolist(), strict=True):
        out += "[" * (trains and not inside) + "]" * (inside and not trains) + ByteTokenizer().decode([token])
        inside = trains
    return out + "]" * inside


RENDERER = Renderer(ByteTokenizer(), PARSER, [])


def test_messages_train_every_reply(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "messages": [
                said("system", "Brief."),
                said("user", "2+2?"),
                said("assistant", "4"),
                said("user", [{"type": "text", "text": "3+"}, {"type": "text", "text": "3?"}]),
                said("assistant", "6", weight=1),
            ]
        },
        "",
        {"prompt": "hi", "completion": "ho", "source": "kept out"},
    )
    first, second = conversations(rows(path, "stages.0.sft"), Path(), PARSER)
    assert (first.id, second.id) == ("data:1", "data:3")
    assert shown(first.samples(RENDERER)[0]) == (
        "<|im_start|>system\nBrief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n[4<|im_end|>]\n"
        "<|im_start|>user\n3+3?<|im_end|>\n<|im_start|>assistant\n[6<|im_end|>]"
    )
    assert shown(second.samples(RENDERER)[0]).endswith("<|im_start|>assistant\n[ho<|im_end|>]")
    assert [*first.texts()] == ["Brief.", "2+2?", "4", "3+3?", "6"]
    sample = first.samples(RENDERER)[0]
    assert sample.advantage.tolist() == sample.loss_mask.astype(float).tolist()
    assert [span[0] for span in sample.turn_spans] == [0, 1]


def test_a_reply_of_weight_0_is_only_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {
            "messages": [
                said("user", "a"),
                said("assistant", "b", weight=0),
                said("user", "c"),
                said("assistant", "d"),
            ]
        },
    )
    (one,) = conversations(rows(path, "stages.0.sft"), Path(), PARSER)
    assert shown(one.samples(RENDERER)[0]).count("[") == 1
    assert shown(one.samples(RENDERER)[0]).endswith("[d<|im_end|>]")
    assert "weight" not in str(one.opening)


@pytest.mark.parametrize("arguments", [{"by": 2}, '{"by": 2}'])
def test_calls_are_written_in_the_recipes_format(tmp_path: Path, arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    path = written(
        tmp_path,
        {
            "messages": [
                said("user", "go"),
                said("assistant", None, tool_calls=[call], refusal=None),
                said("tool", "2", tool_call_id="1"),
                said("assistant", "done"),
            ]
        },
    )
    (one,) = conversations(rows(path, "stages.0.sft"), Path(), PARSER)
    assert PARSER.parse(one.turns[0].text, ["add"]).calls[0].arguments == {"by": 2}
    assert one.turns[0].observations == [said("tool", "2", tool_call_id="1")]


ASKED = {"from": "human", "value": "Add 2."}


def asks(*ids: str) -> dict[str, Any]:
    calls = [{"id": id, "function": {"name": "add", "arguments": ""}} for id in ids]
    return said("assistant", None, tool_calls=calls)


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_results_stand_in_the_order_of_the_calls_that_they_name(tmp_path: Path, order: str) -> None:
    results = {id: said("tool", f"value of {id}", tool_call_id=id) for id in "AB"}
    given = [said("user", "go"), asks("A", "B"), *(results[id] for id in order), said("user", "So?")]
    path = written(tmp_path, {"messages": [*given, said("assistant", "ok")]})
    (one,) = conversations(rows(path), Path(), PARSER)
    assert [each["content"] for each in one.turns[0].observations] == ["value of A", "value of B", "So?"]
    assert [call.arguments for call in PARSER.parse(one.turns[0].text, ["add"]).calls] == [{}, {}]


def test_results_without_ids_stay_where_they_are(tmp_path: Path) -> None:
    calls = [{"function": {"name": "add", "arguments": {}}}] * 2
    given = [said("user", "go"), said("assistant", "", tool_calls=calls), said("tool", "1"), said("tool", "2")]
    (one,) = conversations(rows(written(tmp_path, {"messages": given}), "stages.0.sft"), Path(), PARSER)
    assert [each["content"] for each in one.turns[0].observations] == ["1", "2"]


WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TALK = [
    said("user", "Bonn?"),
    {"type": "function_call", "call_id": "a", "name": "weather", "arguments": '{"city": "Bonn"}'},
    {"type": "function_call_output", "call_id": "a", "output": "7"},
    said("assistant", "Seven."),
]


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "hf"])
def test_rows_are_the_same_from_every_source(tmp_path: Path, kind: str) -> None:
    row = {"asked": {"input": TALK, "tools": [{"type": "function", **WEATHER}]}, "other": 1}
    path = tmp_path / f"data.{kind}"
    if kind == "jsonl":
        written(tmp_path, row, row)
    elif kind == "json":
        path.write_text(json.dumps([row, row], indent=2))
    elif kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist([row, row]), path)
    else:
        datasets.DatasetDict({"train": datasets.Dataset.from_list([row, row])}).save_to_disk(path)
    source = RowSource("jsonl" if kind == "json" else kind, path.name, "stages.0.sft")
    found = conversations(source, tmp_path, PARSER, "asked.input", "asked.tools")
    assert len({each.id for each in found}) == 2
    text = shown(found[0].samples(RENDERER)[0])
    assert '"name": "weather"' in text.partition("<|im_end|>")[0], "the row's tools are described"
    assert "add" not in text, "those of the recipe are not"
    assert text.endswith("assistant\n[Seven.<|im_end|>]")
    assert PARSER.for_tools(found[0].tools or []).parse(found[0].turns[0].text, ["weather"]).calls


def test_a_call_of_its_own_keeps_weight_and_reasoning(tmp_path: Path) -> None:
    call = {"from": "function_call", "value": '{"name": "add", "arguments": {"by": 2}}'}
    answer = [{"from": "observation", "value": "2"}, {"from": "gpt", "value": "Two."}]
    item = {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"by": 2}', "weight": 0}
    result = {"type": "function_call_output", "call_id": "a", "output": "2"}
    rest = [result, said("assistant", "Two.")]
    path = written(
        tmp_path,
        {"conversations": [ASKED, {**call, "weight": 0}, *answer]},
        {"conversations": [ASKED, {**call, "reasoning_content": "Count."}, *answer]},
        {"messages": [said("user", "go"), item, *rest]},
    )
    shared, thinks, items = conversations(rows(path), Path(), PARSER)
    assert [turn.trains for turn in shared.turns] == [turn.trains for turn in items.turns] == [False, True]
    assert PARSER.parse(thinks.turns[0].text, ["add"]).thought == "Count."


def test_a_system_message_beside_the_messages_is_not_lost(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"messages": MESSAGES, "system": "Be kind."},
        {"messages": [said("system", "Be kind."), *MESSAGES], "system": "Be kind."},
        {"prompt": "hi", "completion": "ho", "system": "Be kind."},
        {"messages": MESSAGES, "system": ""},
    )
    openings = [[each["role"] for each in one.opening] for one in conversations(rows(path), Path(), PARSER)]
    assert openings == [["system", "user"], ["system", "user"], ["system", "user"], ["user"]]
    asked = written(tmp_path, {"asked": {"input": MESSAGES, "instructions": "Be kind."}, "system": "Be short."})
    (one,) = conversations(rows(asked), Path(), PARSER, "asked.input")
    assert one.opening[0] == said("system", "Be kind.")
    pair = {"prompt": "hi", "chosen": "ho", "rejected": "no", "system": "Be kind."}
    for each, _ in preferences(rows(written(tmp_path, pair)), Path(), PARSER, paired=True):
        assert [message["role"] for message in each.opening] == ["system", "user"]


def test_nulls_that_a_table_fills_in_are_no_arguments(tmp_path: Path) -> None:
    maybe = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    schema = {"type": "object", "properties": {"by": {"type": "integer"}, "of": {"type": "string"}, "to": maybe}}
    call = {"function": {"name": "count", "arguments": {"by": 2, "of": None, "to": None, "city": None}}}
    row = {"messages": [said("user", "go"), said("assistant", "", tool_calls=[call])]}
    tools = [{"name": "count", "parameters": schema}]
    (one,) = conversations(rows(written(tmp_path, {**row, "tools": tools})), Path(), PARSER)
    read = PARSER.for_tools(one.tools or []).parse(one.turns[0].text, ["count"])
    assert read.calls[0].arguments == {"by": 2, "to": None}


def test_a_path_that_leads_nowhere_names_the_key_and_the_row(tmp_path: Path) -> None:
    path = written(tmp_path, {"asked": {"input": MESSAGES}})
    with pytest.raises(TaskError, match=r"data.jsonl:1: stages.0.sft.messages: the row has no 'asked.output'"):
        conversations(rows(path), tmp_path, PARSER, "asked.output")
    with pytest.raises(TaskError, match=r"data.jsonl:1: stages.0.sft.tools: .*\n.*it has: asked"):
        conversations(rows(path), tmp_path, PARSER, "asked.input", "tools")


def test_files_of_one_name_in_a_folder_have_ids_of_their_own(tmp_path: Path) -> None:
    """Pairs are compared by the id of their row."""
    for name, reply in (("en", "yes"), ("fr", "oui")):
        (tmp_path / name).mkdir()
        written(tmp_path / name, {"prompt": name, "chosen": reply, "rejected": "no"})
    found = preferences(rows(tmp_path), Path(), PARSER, paired=True)
    assert [each.group_id for each, _ in found] == ["en.data:1", "en.data:1", "fr.data:1", "fr.data:1"]


def test_preferences_share_their_prompt(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"prompt": "a?", "chosen": "yes", "rejected": "no"},
        {
            "chosen": [said("user", "b?"), said("assistant", "hm"), said("user", "so?"), said("assistant", "yes")],
            "rejected": [said("user", "b?"), said("assistant", "hm"), said("user", "so?"), said("assistant", "no")],
        },
        {"prompt": "c?", "completion": "well", "label": False},
    )
    found = preferences(rows(path, "stages.0.preference"), Path(), PARSER, paired=False)
    assert [(each.id, each.group_id, label) for each, label in found] == [
        ("data:1/chosen", "data:1", 1.0), ("data:1/rejected", "data:1", 0.0),
        ("data:2/chosen", "data:2", 1.0), ("data:2/rejected", "data:2", 0.0),
        ("data:3", "data:3", 0.0),
    ]  # fmt: skip
    # A reply that both share belongs to the prompt: it is read and not learned.
    texts = [shown(each.samples(RENDERER)[0]) for each, _ in found]
    assert texts[2].endswith("[yes<|im_end|>]")
    assert texts[3].count("[") == 1
    assert "hm<|im_end|>\n" in texts[3]


def test_a_row_of_three_replies(tmp_path: Path) -> None:
    path = written(tmp_path, {"prompt": "a?", "gold": "yes!", "chosen": "yes", "rejected": "no"})
    found = preferences(rows(path, "stages.0.preference"), Path(), PARSER, paired=True, gold=True)
    assert [(each.id, each.group_id, label) for each, label in found] == [
        ("data:1/gold", "data:1", 2.0), ("data:1/chosen", "data:1", 1.0), ("data:1/rejected", "data:1", 0.0),
    ]  # fmt: skip
    two = written(tmp_path, {"prompt": "a?", "chosen": "yes", "rejected": "no"})
    with pytest.raises(TaskError, match="the loss compares three replies"):
        preferences(rows(two, "stages.0.preference"), Path(), PARSER, paired=True, gold=True)


def test_three_episodes_of_a_run() -> None:
    rows = [
        SimpleNamespace(id=f"{group}{k}", group_id=group, reward=reward)
        for group, rewards in (("a", [0.5, 1.0, 0.0, 0.2]), ("b", [1.0, 0.0, 0.0]), ("c", [1.0, 0.0]))
        for k, reward in enumerate(rewards)
    ]
    (found,) = best_two_and_worst(rows, attrgetter("reward"))
    assert [row.id for row in found] == ["a1", "a0", "a2"], "the others have no second best"
    with pytest.raises(TrainError, match="none of 1 groups has three episodes"):
        best_two_and_worst(rows[-2:], attrgetter("reward"))


MESSAGES = [said("user", "a"), said("assistant", "b")]


@pytest.mark.parametrize(
    ("row", "message", "remedy"),
    [
        ("{", "not valid JSON", ""),
        ("[]", "a row is an object, found list", ""),
        ({"text": "hi"}, "the row has text", 'give {"messages": [...]}'),
        ({"messages": []}, "messages is []", "a list of messages"),
        ({"messages": ["hi"]}, "messages[0] is 'hi'", "a message: {role, content}"),
        ({"messages": [said("user", "a")]}, "the assistant has no message", "a prompt, then a reply"),
        ({"messages": [said("assistant", "a")]}, "the first message is the assistant's", "a prompt"),
        ({"messages": [*MESSAGES, said("assistant", "c")]}, "messages 1 and 2 are both the assistant's", "as one"),
        ({"messages": [said("user", "a"), said("assistant", "b", weight=0)]}, "every reply has weight 0", ""),
        ({"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools[0] has no name", "a definition"),
        ({"messages": MESSAGES, "tools": [{"name": "f", "parameters": ["x"]}]}, "not a schema of an object", "type"),
        ({"messages": MESSAGES, "tools": [{"name": "f", "parameters": {"type": "dict"}}]}, "'dict'", "type"),
        ({"messages": MESSAGES, "tools": [{"type": "web_search"}]}, "a tool of type 'web_search'", "only functions"),
        ({"messages": MESSAGES, "tools": [ADD, ADD]}, "tools has the tool 'add' twice", "leave one out"),
        ({"messages": [said("critic", "a"), *MESSAGES]}, "messages[0] has the role 'critic'", "one of system"),
        ({"messages": [said("user", "a", reasoning_content="b"), MESSAGES[1]]}, "messages[0] has calls or reasoning",
         "the assistant's"),
        ({"messages": [MESSAGES[0], said("assistant", "<think>c</think>b", reasoning_content="c")]},
         "the reasoning of a reply stands in the content, too", "give it once"),
        ({"messages": [MESSAGES[0], said("assistant", "b", reasoning_content="c", reasoning="d")]},
         "messages[1] has two reasonings", "give one"),
        ({"messages": [said("user", "a"), said("assistant", "b", audio={"id": 1})]}, "messages[1] has audio", "lost"),
        ({"messages": [MESSAGES[0], said("assistant", "b", reasoning=[{"type": "text", "text": "c"}])]},
         "the reasoning of messages[1] is [{", "text, under reasoning_content"),
        ({"messages": [MESSAGES[0], said("assistant", [{"type": "reasoning_text", "text": "c"}])]},
         "messages[1]: a part", "text only"),
        ({"messages": [MESSAGES[0], said("assistant", "b", reasoning_content="not </think> yet")]},
         "the reasoning of a reply holds '</think>'", "without its marks"),
        ({"conversations": [ASKED, {"from": "function_call", "value": '{"name": "add", "args": {"by": 2}}'}]},
         "the call of conversations[1] has args, which would be lost", '"arguments"'),
        ({"conversations": [ASKED, {"from": "function_call", "value": '{"name": "add"}', "loss": False}]},
         "conversations[1] is a call and has loss, which would be lost", '"arguments"'),
        ({"conversations": [ASKED, {"from": "gpt", "value": "I count."},
                            {"from": "function_call", "value": '{"name": "add"}', "weight": 0}]},
         "conversations[2] and the message that it joins differ in weight", "give both the same"),
        ({"messages": [said("system", "a"), *MESSAGES], "system": "b"},
         "a system message, and a field system", "leave one of them out"),
        ({"messages": [said("user", [{"type": "image_url"}]), said("assistant", "b")]}, "messages[0]", "text only"),
        ({"messages": [said("user", [{"type": "text"}]), said("assistant", "b")]}, "messages[0]: a part", "text only"),
        ({"messages": [MESSAGES[0], said("assistant", "b", weight=2)]}, "messages[1] has weight 2", "0: context"),
        (
            {"messages": [said("user", "a"), said("assistant", "", tool_calls=[{"function": {"name": "sub",
                                                                                             "arguments": {}}}])]},
            "the recipe's tools have no 'sub', but add", "",
        ),
        (
            {"messages": [said("user", "a"), asks("A", "B"), said("tool", "1", tool_call_id="C")]},
            "a result names the call 'C'; the calls before it are 'A', 'B'",
            "give every call one result",
        ),
        (
            {"messages": [said("user", "a"), asks("A", "B"), said("tool", "1", tool_call_id="B")]},
            "the call 'A' has no result, and another of the same message has one",
            "give every call one result",
        ),
        (
            {"messages": [said("user", "a"), asks("A"), *[said("tool", "1", tool_call_id="A")] * 2]},
            "the call 'A' has more than one result",
            "give every call one result",
        ),
        (
            {"messages": [said("user", "a"), said("assistant", "", tool_calls=[{"function": {"name": "add",
                                                    "arguments": {}}}]), said("tool", "1"), said("tool", "2")]},
            "1 calls have 2 results",
            "give every call one result",
        ),
        (
            {"messages": [said("user", "a"), said("assistant", "", tool_calls=[{"name": "add"}])]},
            "a tool call cannot be written in the format hermes",
            '{"function": {"name"',
        ),
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_named_with_its_line(tmp_path: Path, row: Any, message: str, remedy: str) -> None:
    path = written(tmp_path, {"prompt": "hi", "completion": "ho"}, row)
    with pytest.raises(TaskError) as error:
        conversations(rows(path, "stages.0.sft"), Path(), PARSER)
    assert error.value.place == f"{path}:2"
    assert message in str(error.value)
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "chosen": "b"}, "the row has prompt, chosen"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "chosen and rejected are the same"),
        ({"chosen": MESSAGES, "rejected": [*MESSAGES, said("user", "c"), said("assistant", "d")]},
         "chosen is the beginning of rejected"),
        ({"chosen": [*MESSAGES, said("user", "c")], "rejected": MESSAGES}, "rejected is the beginning of chosen"),
        ({"chosen": [*MESSAGES, said("user", "c")], "rejected": [*MESSAGES, said("user", "d")]},
         "chosen has no reply after the prompt: there is nothing to learn"),
        ({"prompt": "a", "completion": "b", "label": True}, "the loss compares a chosen reply with a rejected one"),
    ],
)  # fmt: skip
def test_what_is_no_preference_is_named_with_its_line(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(TaskError, match=message) as error:
        preferences(rows(written(tmp_path, row), "stages.0.preference"), Path(), PARSER, paired=True)
    assert str(error.value.place).endswith("data.jsonl:1")
    odd = written(tmp_path, {"prompt": "a", "completion": "b", "label": "yes"})
    with pytest.raises(TaskError, match="label is 'yes'"):
        preferences(rows(odd, "stages.0.preference"), Path(), PARSER, paired=False)


def test_a_file_that_is_not_there_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"^stages.0.sft.jsonl: there is no file"):
        conversations(rows(tmp_path / "none.jsonl", "stages.0.sft"), Path(), PARSER)
    with pytest.raises(TaskError, match="has no row"):
        conversations(rows(written(tmp_path, ""), "stages.0.sft"), Path(), PARSER)


def test_a_raw_text_trains_whole_and_has_no_template(tmp_path: Path) -> None:
    path = written(tmp_path, {"text": "a\nb <|im_end|>", "id": 7})
    (found,) = raw_texts(path.name, tmp_path, None, "text")
    (sample,) = found.samples(ByteTokenizer(), 64)
    end = ByteTokenizer().decode([ByteTokenizer().stop_ids[0]])
    assert shown(sample) == f"{end}[a\nb <|im_end|>{end}]"
    assert sample.token_ids.size == 1 + len("a\nb <|im_end|>") + 1, "text that looks like a control token is text"
    assert sample.advantage.tolist() == sample.loss_mask.astype(float).tolist()


@pytest.mark.parametrize(("length", "context"), [(4, 64), (None, 4), (9, 4)])
def test_a_long_text_is_cut_and_each_token_trains_once(tmp_path: Path, length: int | None, context: int) -> None:
    written(tmp_path, {"text": "abcdefg"})
    (found,) = raw_texts("data.jsonl", tmp_path, length, "text")
    samples = found.samples(ByteTokenizer(), context)
    end = ByteTokenizer().decode([ByteTokenizer().stop_ids[0]])
    assert [shown(each) for each in samples] == [f"{end}[abc]", "c[def]", f"f[g{end}]"]
    assert [each.episode_id for each in samples] == ["data:1/0", "data:1/1", "data:1/2"]


def test_raw_texts_come_from_a_function(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("def told():\n    yield 'one'\n    yield 'two'\n\ndef wrong():\n    yield 3\n")
    assert [each.text for each in raw_texts("./task.py:told", tmp_path, None, "text")] == ["one", "two"]
    with pytest.raises(TaskError, match=r"the text is 3") as error:
        raw_texts("./task.py:wrong", tmp_path, None, "stages.0.sft.text")
    assert "stages.0.sft.text: ./task.py:wrong, text 1" in str(error.value)


@pytest.mark.parametrize("given", ["'one text'", "None"])
def test_a_function_that_gives_no_texts_is_refused(tmp_path: Path, given: str) -> None:
    (tmp_path / "task.py").write_text(f"def told():\n    return {given}\n")
    with pytest.raises(TaskError, match="told gives") as error:
        raw_texts("./task.py:told", tmp_path, None, "stages.0.sft.text")
    assert error.value.place == "stages.0.sft.text"


@pytest.mark.parametrize("rows", [[{"texts": "a"}], [{"text": " "}], []])
def test_a_row_without_text_is_refused(tmp_path: Path, rows: list[Any]) -> None:
    written(tmp_path, *rows)
    with pytest.raises(TaskError, match="the text is|has no text"):
        raw_texts("data.jsonl", tmp_path, None, "text")
