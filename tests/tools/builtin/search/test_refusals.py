"""Requests that a server refuses because of the agent's text become observations, and end no episode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentrl.proxy.web import listening
from agentrl.rollouts.faults.failures import verdict
from agentrl.tools.builtin.ask_user import AskUser
from agentrl.tools.builtin.search import requests as asking
from agentrl.tools.builtin.search import tool as searching
from agentrl.tools.builtin.search.document import Document
from agentrl.tools.builtin.search.route import Route
from agentrl.tools.builtin.search.served import application
from agentrl.tools.builtin.search.tool import words
from agentrl.types.errors import InfraError, RecipeError, ToolError
from agentrl.types.task import Task
from tests.tools.builtin.search.test_engines import opened, serving

LONG = 9000
"""Characters of a text that the servers of these tests refuse."""


class Library:
    """An index of one document."""

    def find(self, query: str, k: int) -> list[Document]:
        return [Document("d", "Paris", "In France.")]

    def get(self, id: str) -> Document | None:
        return None

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("length", [LONG, 70_000])
async def test_a_query_that_no_address_holds_is_an_observation(length: int) -> None:
    """`agentrl search serve` reads lines of 8 KiB, and no client writes one of 64."""
    async with listening(application(Library()), "127.0.0.1", 0) as url:
        tool = await opened(engine="server", url=url)
        for call in (tool.search("x" * length), tool.fetch("x" * length)):
            with pytest.raises(ToolError, match=r"the server does not take this \(.*\): say it shorter"):
                await call
        assert "In France" in await tool.search("paris")


def choosy(method: str, path: str, given: dict[str, Any], headers: Any) -> tuple[int, Any]:
    """A server of models, and of searches, that takes no long text, as one with a small context does."""
    text = given.get("q") or given["messages"][-1]["content"]
    if len(text) >= LONG:
        return 400, {"error": f"too long: {text[-50:]}"}
    said = {"choices": [{"message": {"content": "1. Fine."}}]}
    return 200, said | {"organic": [{"link": "a", "snippet": "Fine."}], "results": [{"url": "a", "content": "Fine."}]}


async def _route(url: str) -> Callable[[str], Awaitable[Any]]:
    tool = Route({"big": {"url": url, "model": "m"}})
    return lambda text: tool.route("big", text)


async def _user(url: str) -> Callable[[str], Awaitable[Any]]:
    tool = AskUser(url=url, model="m")
    await tool.open(Task.of("t", "?", user="You want tea."), None)
    return tool.ask_user


async def _searched(url: str, engine: str) -> Callable[[str], Awaitable[Any]]:
    more = {"model": "m"} if engine == "simulated" else {}
    return (await opened(engine=engine, url=url, api_key_env="KEY", **more)).search


@pytest.mark.parametrize("kind", ["route", "user", "serper", "searxng", "simulated"])
@pytest.mark.parametrize("status", [400, 413, 403, 500])
async def test_what_a_model_or_a_search_refuses_of_a_text_is_an_observation(
    kind: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a failure: one that this text makes, and no other."""
    monkeypatch.setenv("KEY", "k")
    monkeypatch.setattr(asking, "TRIES", 2)

    def answer(method: str, path: str, given: dict[str, Any], headers: Any) -> tuple[int, Any]:
        code, value = choosy(method, path, given, headers)
        return (status if code == 400 else code), value

    with serving(answer) as (url, asked):
        call = await {"route": _route, "user": _user}[kind](url) if kind in ("route", "user") else None
        call = call or await _searched(url, kind)
        before = await call("How far?")
        with pytest.raises(ToolError, match=f"status {status}") as refused:
            await call("x" * LONG)
        assert "too long" not in str(refused.value), "what a server says may hold what only it was told"
        assert await call("How far?") == before
        assert len(asked) <= 2 + 4


async def test_a_server_that_refuses_everything_is_the_recipe_s() -> None:
    with serving(lambda *given: (404, {"error": "no such model"})) as (url, asked):
        tool = Route({"big": {"url": url, "model": "m"}})
        with pytest.raises(RecipeError, match="404"):
            await tool.route("big", "How far?")
        assert len(asked) == 2


async def test_a_server_that_fails_whatever_it_is_asked_is_infrastructure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "TRIES", 2)
    with serving(lambda *given: (500, {})) as (url, _):
        tool = Route({"big": {"url": url, "model": "m"}})
        with pytest.raises(InfraError, match="after 2 attempts"):
            await tool.route("big", "How far?")


async def test_a_server_that_comes_back_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage that ends while it is looked into is nobody's fault."""
    monkeypatch.setattr(asking, "TRIES", 1)
    said = {"choices": [{"message": {"content": "Far."}}]}
    with serving(lambda *given: (200, said) if len(asked) > 1 else (503, {})) as (url, asked):
        assert await Route({"big": {"url": url, "model": "m"}}).route("big", "How far?") == "Far."


async def test_a_server_that_says_nothing_is_not_asked_what_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "TRIES", 1)
    with pytest.raises(InfraError) as away:
        await Route({"big": {"url": "http://127.0.0.1:1", "model": "m"}}).route("big", "x" * LONG)
    assert verdict(away.value).status == "infra_error"


async def test_an_answer_that_is_nested_too_deep_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "TRIES", 1)
    with serving(lambda *given: (200, b"[" * 100_000)) as (url, _), pytest.raises(InfraError, match="after 1 attempts"):
        await Route({"big": {"url": url, "model": "m"}}).route("big", "How far?")


def test_long_words_of_queries_are_not_kept() -> None:
    before = searching._known_singular.cache_info().currsize
    assert words(f"{'a' * 5000}s b{'c' * 100}") == ["a" * 5000, "b" + "c" * 100]
    assert searching._known_singular.cache_info().currsize == before
    assert words("cities glass") == ["city", "glass"]
