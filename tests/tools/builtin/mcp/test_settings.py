"""What the `mcp` tool refuses, and what it does not offer."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mcp", reason="pip install 'agentrl-framework[mcp]'")

from agentrl.api.recipe_check import check as check_recipe
from agentrl.tools.builtin.mcp.copies import CopyStopped, copy_files
from agentrl.tools.builtin.mcp.settings import McpSettings
from agentrl.tools.builtin.mcp.tool import Mcp
from agentrl.types.errors import TaskError
from agentrl.types.task import Task

TASK = Task.of("t1", "Sell tea.", db="shop.db", level=3, home="$HOME")


def test_a_server_of_one_episode_is_told_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_TESTS", "{id}")
    env = {"LEVEL": "{data.level}", "KEY": "$SECRET_OF_TESTS", "AT": "{data.home}"}
    found = McpSettings(command=("serve", "--db=/tmp/{data.db}", "{id}", "{instruction}"), env=env).of(TASK)
    assert found.command == ("serve", "--db=/tmp/shop.db", "t1", "Sell tea.")
    assert found.env == {"LEVEL": "3", "KEY": "{id}", "AT": "$HOME"}, "variables are the recipe's to name"
    told = McpSettings(url="http://127.0.0.1:1/{id}", headers={"X-Level": "{data.level}"}).of(TASK)
    assert (told.url, told.headers) == ("http://127.0.0.1:1/t1", {"X-Level": "3"})


def test_a_shared_server_is_told_nothing() -> None:
    with pytest.raises(ValueError, match=r"told nothing of one task: remove 'shared', or {data.db}"):
        McpSettings(command=("serve", "{data.db}"), shared=True)
    with pytest.raises(ValueError, match="shared"):
        McpSettings(command=("serve",), shared=-1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": ("serve", "{folder}"), "shared": True}, "no folder of one episode: remove 'shared'"),
        ({"command": ("serve",), "files": {"a": "b"}}, r"files are copied to {folder}: name it in command or env"),
        ({"command": ("serve", "{folder}"), "files": {"../a": "b"}}, r"'../a' is not a name in {folder}"),
        ({"command": ("serve", "{folder}"), "files": {"/a": "b"}}, r"'/a' is not a name in {folder}"),
        ({"command": ("serve", "{folder}"), "files": {"a": "b", "a/c": "b"}}, r"'a/c' lies in another copy"),
        (
            {"command": ("serve", "{folder}"), "files": {"a": "b", "./a": "c"}},
            r"'a' lies in another copy, or has its name",
        ),
        ({"url": "http://x.test/{folder}", "files": {"a": "b"}}, "files belong to command"),
    ],
)
def test_a_folder_of_an_episode_is_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        McpSettings.model_validate(settings)


def test_the_name_of_a_copy_may_be_the_task_s(tmp_path: Path) -> None:
    (tmp_path / "original").write_text("")
    settings = McpSettings(command=("serve", "{folder}"), files={"{data.db}": str(tmp_path / "original")})
    assert settings.of(TASK, tmp_path).files == {"shop.db": str(tmp_path / "original")}
    with pytest.raises(TaskError, match="task t2: mcp: files: '../a' is not a name in {folder}"):
        settings.of(Task.of("t2", "?", db="../a"))


def test_links_of_a_folder_stay_links_and_others_become_copies(tmp_path: Path) -> None:
    original, target = tmp_path / "original", tmp_path / "copies"
    (original / "inner").mkdir(parents=True)
    (original / "file").write_text("1")
    (original / "inner" / "to-file").symlink_to("../file")
    (original / "itself").symlink_to(".")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "back").symlink_to(tmp_path / "outside")
    (original / "out").symlink_to(tmp_path / "outside")
    os.mkfifo(original / "pipe")
    copy_files({"a": str(original)}, target, threading.Event())
    assert sorted(each.name for each in (target / "a").iterdir()) == ["file", "inner", "itself", "out"]
    (target / "a" / "inner" / "to-file").write_text("2")
    assert ((target / "a" / "file").read_text(), (original / "file").read_text()) == ("2", "1")
    assert not (target / "a" / "out").is_symlink()


async def test_copies_end_with_the_episode(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(CopyStopped):
        copy_files({"a": __file__}, tmp_path, stop)


def test_a_task_without_the_key_is_found_before_the_first_episode(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"db": "a", "q": "?"}\n{"bd": "b", "q": "?"}\n')
    (tmp_path / "recipe.yaml").write_text(
        f"name: shelf\ntasks: {{jsonl: tasks.jsonl, prompt: '{{q}}'}}\n"
        f"tools:\n- {{use: mcp, command: [{sys.executable}]}}\n"
        f"- {{use: mcp, command: [{sys.executable}, '{{data.db}}']}}\n"
        "model: {scratch: {vocab_size: 300, max_context: 512}}\nrewards: {exact_match: {key: q}}\n"
    )
    with pytest.raises(TaskError, match=r"task tasks-2: the task has no 'data.db'\n.*its data has: bd, q"):
        check_recipe(str(tmp_path / "recipe.yaml"), [])


def test_braces_that_mean_something_else_stay() -> None:
    told = ["server", '{"data": {}}', "{user}", "${HOME}"]
    found = McpSettings(command=told, env={"FORMAT": "{date}"}).of(TASK)
    assert (found.command, found.env) == (tuple(told), {"FORMAT": "{date}"})


def test_a_tool_that_runs_as_a_task_only_is_not_offered() -> None:
    def told(name: str, support: str | None) -> Any:
        execution = None if support is None else SimpleNamespace(task_support=support)
        schema = {"type": "object", "properties": {}}
        return SimpleNamespace(name=name, description="", input_schema=schema, execution=execution)

    tool = Mcp(McpSettings(command=[sys.executable]))
    listed = [told(str(support), support) for support in (None, "forbidden", "optional", "required")]
    tool._connection = SimpleNamespace(tools=listed)  # type: ignore[assignment]
    assert [each.name for each in tool.tools()] == ["None", "forbidden", "optional"]
