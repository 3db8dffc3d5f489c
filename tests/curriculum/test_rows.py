"""Tasks of rows: JSON lines, Parquet, and data sets of the package datasets."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest
from pydantic import ValidationError

from agentrl.api.run_files import data_of
from agentrl.config.tasks import TaskSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.types.errors import MissingExtra, TaskError
from agentrl.types.task import Task
from tests.hub import open_hub
from tests.images import png

ROWS: list[dict[str, Any]] = [
    {"q": "2 + 2?", "a": "4", "level": 1, "extra": {"gold": [4]}},
    {"q": "3 + 3?", "a": "6", "level": 2, "extra": {"gold": [6]}},
]


def tasks(base: Path, **settings: Any) -> list[Task]:
    return load_tasks(TaskSettings.model_validate(settings), base, seed=0).tasks


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def saved(path: Path, **splits: list[dict[str, Any]]) -> Path:
    import datasets

    datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}).save_to_disk(path)
    return path


def test_a_pattern_takes_the_files_that_fit(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lines(tmp_path / "jobs" / name / "trajectory.json", ROWS[:1])
        lines(tmp_path / "jobs" / name / "result.json", [{"other": 1}])
    found = tasks(tmp_path, jsonl="./jobs/**/trajectory.json", prompt="{q}")
    assert [task.id for task in found] == ["a.trajectory-1", "b.trajectory-1"]
    assert [task.id for task in tasks(tmp_path, jsonl="jobs/[a]/*t*j*.json", prompt="{q}")] == ["trajectory-1"]
    named = {"tasks": {"jsonl": "./jobs/**/trajectory.json"}}
    before = data_of(named, tmp_path)  # a training that is resumed notices files that changed
    lines(tmp_path / "jobs" / "a" / "result.json", [{"other": 2}])
    assert data_of(named, tmp_path) == before != {}
    lines(tmp_path / "jobs" / "c" / "trajectory.json", ROWS[1:])
    assert data_of(named, tmp_path) != before
    with pytest.raises(TaskError, match=r"tasks\.jsonl: no file fits /.*/jobs/\*\.json"):
        tasks(tmp_path, jsonl="jobs/*.json", prompt="{q}")
    lines(tmp_path / "set[1].jsonl", ROWS)
    assert len(tasks(tmp_path, jsonl="set[1].jsonl", prompt="{q}")) == 2


def test_the_same_rows_are_the_same_tasks(tmp_path: Path) -> None:
    lines(tmp_path / "set.jsonl", ROWS)
    table(tmp_path / "set.parquet", ROWS)
    saved(tmp_path / "set", train=ROWS)
    table(tmp_path / "files" / "set" / "train.parquet", ROWS)
    found = [
        tasks(tmp_path, **source, prompt="{q}")
        for source in (
            {"jsonl": "set.jsonl"}, {"parquet": "./set.parquet"}, {"hf": "./set"}, {"hf": "files/set"}
        )
    ]  # fmt: skip
    assert [task.id for task in found[0]] == ["set-1", "set-2"]
    assert [task.data for task in found[0]] == ROWS
    assert found[1:] == found[:1] * 3


def test_folders_of_files_are_read_in_order(tmp_path: Path) -> None:
    for name, row in zip(("b", "a"), ROWS, strict=True):
        lines(tmp_path / "lines" / f"{name}.jsonl", [row])
        table(tmp_path / "tables" / f"{name}.parquet", [row])
    assert [task.id for task in tasks(tmp_path, jsonl="lines", prompt="{q}")] == ["a-1", "b-1"]
    assert [task.id for task in tasks(tmp_path, parquet="tables", prompt="{q}")] == ["a-1", "b-1"]
    with pytest.raises(TaskError, match=r"holds no \.parquet file"):
        tasks(tmp_path, parquet="lines", prompt="{q}")


def test_messages_and_further_names(tmp_path: Path) -> None:
    """The columns of a data set for verl."""
    chat = [{"role": "system", "content": "Count.", "name": None}, {"role": "user", "content": "2 + 2?", "name": None}]
    table(tmp_path / "t.parquet", [{"prompt": chat, "reward_model": {"ground_truth": "4", "style": "rule"}}])
    (task,) = tasks(tmp_path, parquet="t.parquet", messages="prompt", fields={"answer": "reward_model.ground_truth"})
    assert task.instruction == [{"role": "system", "content": "Count."}, {"role": "user", "content": "2 + 2?"}]
    assert task.data["answer"] == "4"
    with pytest.raises(TaskError, match=r"(?s)row 1.*fields\.answer.*'reward_model\.gold'.*at 'gold'.*ground_truth"):
        tasks(tmp_path, parquet="t.parquet", messages="prompt", fields={"answer": "reward_model.gold"})


def test_objects_and_lists_stand_in_a_prompt_as_json(tmp_path: Path) -> None:
    lines(tmp_path / "rows.jsonl", [{"id": "a", "why": {"ok": True, "none": None, "city": "Zürich"}, "tags": ["x"]}])
    (task,) = tasks(tmp_path, jsonl="rows.jsonl", prompt="{why} {tags}")
    assert task.instruction[0]["content"] == '{"ok": true, "none": null, "city": "Zürich"} ["x"]'


def test_a_prompt_shows_what_lies_inside_of_a_row(tmp_path: Path) -> None:
    lines(tmp_path / "rows.jsonl", [{"id": "a", "issues": [{"title": "Broken"}], "org": {"name": "me"}}])
    (task,) = tasks(tmp_path, jsonl="rows.jsonl", prompt="{org.name}: {title}", fields={"title": "issues.0.title"})
    assert task.instruction[0]["content"] == "me: Broken"
    assert task.data["title"] == "Broken"
    with pytest.raises(TaskError, match="rows.jsonl:1: .*tasks.prompt.*issues"):
        tasks(tmp_path, jsonl="rows.jsonl", prompt="{issues.1.title}")


def test_values_that_json_has_not(tmp_path: Path) -> None:
    row = {"q": "?", "at": datetime.datetime(2026, 1, 2, 3), "price": decimal.Decimal("1.50"), "seed": None}
    table(tmp_path / "t.parquet", [row])
    (task,) = tasks(tmp_path, parquet="t.parquet", prompt="{q}")
    assert task.data == {"q": "?", "at": "2026-01-02T03:00:00", "price": "1.50", "seed": None}


def test_images_within_the_table(tmp_path: Path) -> None:
    image = png(8, 8)
    table(tmp_path / "t.parquet", [{"q": "what?", "picture": {"bytes": image, "path": None}}])
    (task,) = tasks(tmp_path, parquet="t.parquet", prompt="{q}", images="picture")
    assert task.data == {"q": "what?"}
    assert [part["type"] for part in task.instruction[0]["content"]] == ["text", "image"]
    with pytest.raises(TaskError, match=r"t\.parquet, row 1.*bytes"):
        tasks(tmp_path, parquet="t.parquet", prompt="{q}")


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hf"])
@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        ({"q": "?", "a": None, "level": 1}, {"a": "string"}, "column 'a': should be string; it is None"),
        ({"q": "?", "a": "4", "level": 9}, {"level": {"enum": [1, 2]}}, "column 'level': should be one of"),
        ({"q": "?", "a": "4", "level": 9}, {"b": "string"}, "no field 'b'.*it has: q, a, level"),
        ({"q": None, "a": "4", "level": 1}, {}, r"'q' is empty \(null\)"),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    tmp_path: Path, kind: str, row: dict[str, Any], columns: dict[str, Any], expected: str
) -> None:
    good = {"q": "?", "a": "4", "level": 1} | ({"b": "x"} if "b" in columns else {})
    rows = [good, row]
    if kind == "hf":
        name = saved(tmp_path / "set", train=rows).name
    else:
        name = {"jsonl": lines, "parquet": table}[kind](tmp_path / f"set.{kind}", rows).name
    if "b" in columns and kind != "jsonl":  # a table has every column in all rows
        expected = "column 'b': should be string; it is None"
    place = {"jsonl": r"set\.jsonl:2", "parquet": r"set\.parquet, row 2", "hf": "set, row 2"}[kind]
    with pytest.raises(TaskError, match=f"(?s){place}.*{expected}|{expected}.*{place}") as refused:
        tasks(tmp_path, **{kind: name}, prompt="{q}", columns=columns)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"prompt": "{q} {b}"}, r"the prompt is '\{q\} \{b\}'"),
        ({"prompt": "{q}", "columns": {"b": "string"}}, r"tasks\.columns\.b asks for it"),
        *(({"prompt": "{q}", key: "b"}, rf"tasks\.{key} names it") for key in ("id", "tools", "sandbox", "images")),
        ({"messages": "b"}, r"tasks\.messages names it"),
    ],
)
def test_the_key_that_asks_for_a_field_is_named(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    lines(tmp_path / "set.jsonl", [{"q": "?"}])
    with pytest.raises(TaskError, match=rf"set\.jsonl:1: the row has no field 'b'\n.*it has: q; {why}"):
        tasks(tmp_path, jsonl="set.jsonl", **settings)


def test_an_id_that_comes_twice_is_named_with_both_rows(tmp_path: Path) -> None:
    lines(tmp_path / "set.jsonl", [{"q": "?", "name": name} for name in ("a", "b", "a")])
    with pytest.raises(TaskError, match=r"set\.jsonl:3: task id 'a' comes twice\n.*the first is .*set\.jsonl:1;"):
        tasks(tmp_path, jsonl="set.jsonl", prompt="{q}", id="name")
    assert [task.id for task in tasks(tmp_path, jsonl="set.jsonl", prompt="{q}", id="name", limit=2)] == ["a", "b"]
    left = tasks(tmp_path, jsonl="set.jsonl", prompt="{q}", id="name", exclude={"a": "it comes twice"})
    assert [task.id for task in left] == ["b"]


def test_a_type_that_json_schema_has_not_is_refused(tmp_path: Path) -> None:
    lines(tmp_path / "set.jsonl", ROWS)
    with pytest.raises(TaskError, match=r"(?s)no type 'str'.*string"):
        tasks(tmp_path, jsonl="set.jsonl", prompt="{q}", columns={"a": "str"})


def test_splits(tmp_path: Path) -> None:
    saved(tmp_path / "set", train=ROWS[:1], test=ROWS[1:])
    assert [task.data for task in tasks(tmp_path, hf="set", split="test", prompt="{q}")] == ROWS[1:]
    with pytest.raises(TaskError, match=r"(?s)several splits.*train, test"):
        tasks(tmp_path, hf="set", prompt="{q}")
    with pytest.raises(TaskError, match=r"(?s)no split 'dev'.*train, test"):
        tasks(tmp_path, hf="set", split="dev", prompt="{q}")


def test_sources_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TaskError, match=r"broken\.parquet.*cannot be read as Parquet"):
        tasks(tmp_path, parquet="broken.parquet", prompt="{q}")
    with pytest.raises(TaskError, match="there is no file"):
        tasks(tmp_path, parquet="none.parquet", prompt="{q}")
    with pytest.raises(TaskError, match=r"(?s)tasks\.hf none/such: none/such is not on this machine.*reach") as caught:
        tasks(tmp_path, hf="none/such", prompt="{q}")
    assert "hf download none/such --repo-type dataset --local-dir data/such, then tasks.hf=./data/such" in str(
        caught.value
    )
    for path in ("./nothere", "../nothere", str(tmp_path / "nothere")):
        with pytest.raises(TaskError, match=r"tasks\.hf: there is no folder /.*/nothere\n.*relative to the recipe"):
            tasks(tmp_path, hf=path, prompt="{q}")


@pytest.mark.parametrize(
    ("kind", "package", "extra"), [("parquet", "pyarrow.parquet", "tables"), ("hf", "datasets", "hf")]
)
def test_a_missing_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'agentrl-framework\[{extra}\]'"):
        tasks(tmp_path, **{kind: "set"}, prompt="{q}")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"jsonl": "a", "parquet": "b", "prompt": "{q}"}, "exactly one of"),
        ({"parquet": "b"}, "'parquet' needs 'prompt'"),
        ({"hf": "b", "prompt": "{q}", "messages": "chat"}, "not both"),
        ({"jsonl": "b", "prompt": "{q}", "split": "train"}, "'split' is for 'hf'"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        TaskSettings.model_validate(settings)


def test_a_source_that_does_not_exist(tmp_path: Path) -> None:
    from agentrl.types.errors import RecipeError

    with pytest.raises(RecipeError, match="no source of tasks 'harbour'"):
        tasks(tmp_path, source="harbour")


def test_a_pattern_leaves_out_all_tasks_that_fit(tmp_path: Path) -> None:
    lines = [f'{{"q": "what", "name": "{name}"}}' for name in ("a-1", "a-2", "b-1", "a")]
    (tmp_path / "set.jsonl").write_text("\n".join(lines))
    left = tasks(tmp_path, jsonl="set.jsonl", prompt="{q}", id="name", exclude={"a-*": "the grader gives 0"})
    assert [task.id for task in left] == ["b-1", "a"]
    with pytest.raises(TaskError, match=r"has no task 'c-\*'"):
        tasks(tmp_path, jsonl="set.jsonl", prompt="{q}", id="name", exclude={"c-*": "?"})


@pytest.mark.slow
def test_a_data_set_of_the_hub_is_read_at_its_revision(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="pip install 'agentrl-framework[hf]'")
    folder = tmp_path / "rows"
    folder.mkdir()
    with open_hub() as hub:
        for text, tags in (("one", ["v1"]), ("two", [])):
            (folder / "train.jsonl").write_text(json.dumps({"q": text}))
            commit = hub.put("me/rows", folder, *tags)
        environment = os.environ | hub.environment(tmp_path / "hf")  # read when the package is imported
        for revision, said in {None: "two", "v1": "one", commit: "two", "v9": "me/rows has no revision 'v9'"}.items():
            done = subprocess.run(
                [sys.executable, "-c", READ, str(revision or "")], env=environment, capture_output=True, text=True
            )
            assert said in done.stdout + done.stderr, done
    with pytest.raises(TaskError, match=r"tasks\.revision: /.*/rows is a folder of this machine, and has no revisions"):
        tasks(tmp_path, hf="rows", prompt="{q}", revision="v1")


READ = """
import sys
from pathlib import Path
from agentrl.curriculum.tables import RowSource, rows_of
print([row.data for row in rows_of(RowSource("hf", "me/rows", "tasks", revision=sys.argv[1] or None), Path("here"))])
"""
