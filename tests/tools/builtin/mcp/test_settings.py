"""What the `mcp` tool refuses, and what it does not offer."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mcp", reason="pip install 'agentrl-framework[mcp]'")

from agentrl.tools.builtin.mcp.settings import McpSettings
from agentrl.tools.builtin.mcp.tool import Mcp


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"command": ["server", "--db", "{data.db}"]}, "{data.db}"),
        ({"command": ["server"], "env": {"DB": "/tmp/{data.db}.sqlite"}}, "{data.db}"),
        ({"url": "http://127.0.0.1:1/{id}"}, "{id}"),
        ({"url": "http://127.0.0.1:1/", "headers": {"X-Task": "{instruction}"}}, "{instruction}"),
    ],
)
def test_places_that_nothing_fills_in_are_refused(settings: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match="is not filled in here") as refused:
        McpSettings(**settings)
    assert place in str(refused.value)


def test_braces_that_mean_something_else_stay() -> None:
    told = ["server", '{"data": {}}', "{user}", "${HOME}"]
    assert McpSettings(command=told, env={"FORMAT": "{date}"}).command == tuple(told)


def test_a_tool_that_runs_as_a_task_only_is_not_offered() -> None:
    def told(name: str, support: str | None) -> Any:
        execution = None if support is None else SimpleNamespace(task_support=support)
        schema = {"type": "object", "properties": {}}
        return SimpleNamespace(name=name, description="", input_schema=schema, execution=execution)

    tool = Mcp(McpSettings(command=[sys.executable]))
    listed = [told(str(support), support) for support in (None, "forbidden", "optional", "required")]
    tool._connection = SimpleNamespace(tools=listed)  # type: ignore[assignment]
    assert [each.name for each in tool.tools()] == ["None", "forbidden", "optional"]
