"""What the settings of the `mcp` tool refuse."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.tools.mcp.settings import McpSettings


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
