"""The tool `route` asks models over HTTP, and `router_cost` prices them."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.tools.builtin.search import requests as asking
from agentrl.tools.builtin.search.route import Route
from agentrl.types.errors import InfraError, RecipeError, ToolError
from tests.tools.builtin.search.test_engines import serving


async def test_a_question_goes_to_the_model_that_is_named() -> None:
    def answer(method: str, path: str, given: dict[str, Any], headers: Any) -> tuple[int, Any]:
        assert (method, path) == ("POST", "/v1/chat/completions")
        return 200, {"choices": [{"message": {"content": f"{given['model']}: {given['messages'][0]['content']}"}}]}

    with serving(answer) as (url, asked):
        names = ("small", "big")
        models = {name: {"url": f"{url}/v1", "model": f"org/{name}", "about": f"is {name}"} for name in names}
        tool = Route(models, max_tokens=7)
        before = tool.state_key()
        assert await tool.models() == "small: is small\nbig: is big"
        assert await tool.route("big", "How far?") == "org/big: How far?"
        assert asked[0]["max_tokens"] == 7
        assert tool.state_key() != before
        with pytest.raises(ToolError, match="no model 'huge'; there are: small, big"):
            await tool.route("huge", "How far?")
        with pytest.raises(ToolError, match="empty"):
            await tool.route("big", " ")


async def test_a_model_that_is_away_is_infrastructure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "TRIES", 2)
    with serving(lambda *given: (200, {"choices": []})) as (url, _):
        tool = Route({"a": {"url": url, "model": "a"}})
        with pytest.raises(InfraError, match="not a chat completion"):
            await tool.route("a", "?")
    with pytest.raises(InfraError, match="after 2 attempts"):
        await tool.route("a", "?")


@pytest.mark.parametrize(
    ("models", "why"),
    [
        ({}, "no models"), ({"a": {"url": "http://x"}}, "model"), ({"a": {"url": "x", "model": "a"}}, "url"),
        ({"a": {"url": "http://x", "model": "a", "api_key_env": "NO_SUCH_KEY"}}, "no NO_SUCH_KEY"),
    ],
)  # fmt: skip
def test_settings_are_checked(models: Any, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        Route(models)
