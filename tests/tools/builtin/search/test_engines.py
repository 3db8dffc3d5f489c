"""What else answers the tool `search`: servers of web searches, a model, and an index that processes share."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agentrl.tools.builtin.search import requests as asking
from agentrl.tools.builtin.search.tool import Search
from agentrl.types.errors import InfraError, RecipeError, TaskError, ToolError
from agentrl.types.task import Task

Answer = Callable[[str, str, dict[str, Any], Any], tuple[int, Any]]
"""From method, path, query or body, and headers to a status and JSON."""


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[Any]]]:
    """A server on this machine, and what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            given = (
                json.loads(self.rfile.read(length)) if length else {k: v[0] for k, v in parse_qs(parts.query).items()}
            )
            asked.append(given)
            status, value = answer(self.command, parts.path, given, self.headers)
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _reply

        def log_message(self, *about: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


async def opened(task: Task | None = None, **settings: Any) -> Search:
    tool = Search(**settings)
    await tool.open(task or Task.of("t", "Where is Paris?", answer=["France"]), None)
    return tool


async def test_serper_and_searxng(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(method: str, path: str, given: dict[str, Any], headers: Any) -> tuple[int, Any]:
        if method == "POST":
            hits = [{"link": f"https://a/{n}", "title": f"T{n}", "snippet": "In France."} for n in range(9)]
            return (200, {"organic": hits}) if headers["X-API-KEY"] == "secret" else (403, {"message": "no"})
        assert (path, given["format"]) == ("/search", "json")
        return 200, {"results": [{"url": "https://b/1", "title": "B", "content": "On the Seine."}, {"title": "none"}]}

    monkeypatch.setenv("SEARCH_KEY", "secret")
    with serving(answer) as (url, asked):
        tool = await opened(engine="serper", url=url, api_key_env="SEARCH_KEY", k=2)
        assert await tool.search("paris") == "[https://a/0] T0\nIn France.\n\n[https://a/1] T1\nIn France."
        assert asked == [{"q": "paris", "num": 2}]
        assert await tool.fetch("[https://a/1]") == "[https://a/1] T1\nIn France."
        with pytest.raises(ToolError, match="no document with the id"):
            await tool.fetch("https://a/7")
        other = await opened(engine="searxng", url=url)
        assert await other.search("paris") == "[https://b/1] B\nOn the Seine."
        assert tool.state_key() != other.state_key()
        monkeypatch.setenv("SEARCH_KEY", "wrong")
        with pytest.raises(RecipeError, match="403"):
            await tool.search("paris")


async def test_a_server_is_asked_again_and_then_it_is_infrastructure(monkeypatch: pytest.MonkeyPatch) -> None:
    replies: list[tuple[int, Any]] = [(503, b"busy"), (200, b"<html>"), (200, {"results": []})]
    monkeypatch.setattr(asking, "TRIES", 3)
    with serving(lambda *given: replies[min(len(asked) - 1, 2)]) as (url, asked):
        tool = await opened(engine="searxng", url=url, timeout_s=300.0)
        with pytest.raises(ToolError, match="no document contains"):
            await tool.search("paris")
        assert len(asked) == 3
        replies[2] = 200, {"results": "many"}
        with pytest.raises(InfraError, match="no list 'results'"):
            await tool.search("paris")
    with pytest.raises(InfraError, match="after 3 attempts"):
        await tool.search("paris")


async def test_an_answer_is_read_to_its_end_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda *given: (200, {"text": "x" * 2_000_000})) as (url, _):
        assert len((await asking.ask("GET", url, timeout_s=300.0))["text"]) == 2_000_000
        monkeypatch.setattr(asking, "_LARGEST", 1000)
        monkeypatch.setattr(asking, "TRIES", 1)
        with pytest.raises(InfraError, match="it has more than"):
            await asking.ask("GET", url, timeout_s=300.0)


async def test_a_model_plays_the_search_engine_as_noisily_as_the_task_says() -> None:
    def answer(method: str, path: str, given: dict[str, Any], headers: Any) -> tuple[int, Any]:
        text = "Doc 1: Paris is old.\nIt is large.\n\n**Doc 2**: The Seine.\nDocument 3: more"
        return 200, {"choices": [{"message": {"content": text}}]}

    with serving(answer) as (url, asked):
        tool = await opened(engine="simulated", url=url, model="m", k=2)
        shown = await tool.search("paris")
        assert re.sub(r"\[\w+\]", "[]", shown) == "[] paris\nParis is old. It is large.\n\n[] paris\nThe Seine."
        prompt = asked[0]["messages"][0]["content"]
        assert "generate 2 useful documents" in prompt
        assert "Where is Paris? whose answer is France" in prompt
        noisy = await opened(Task.of("t", "Where?", answer="France", noise=1.0), engine="simulated", url=url, model="m")
        await noisy.search("paris")
        assert "generate 5 noisy documents" in asked[1]["messages"][0]["content"]


@pytest.mark.slow
async def test_one_index_is_served_to_all(tmp_path: Path) -> None:
    rows = [{"id": "p", "title": "Paris", "text": "In France."}, {"id": "r", "title": "Rome", "text": "In Italy."}]
    (tmp_path / "library.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "task.py").write_text("from agentrl import Task\ndef tasks():\n    yield Task.of('t', '?')\n")
    recipe = "name: r\ntasks: ./task.py:tasks\nagent: {}\nrewards: {format: {}}\n"
    recipe += "tools: [{search: {corpus: ./library.jsonl}}]\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    command = [sys.executable, "-u", "-m", "agentrl.cli", "search", "serve", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            url = re.search(r"http://\S+", line)
            assert url is not None, line
            tool = await opened(corpus="unused", engine="server", url=url[0])
            local = await opened(corpus=rows)
            assert await tool.search("italy") == await local.search("italy") == "[r] Rome\nIn Italy."
            assert await tool.fetch("p") == await local.fetch("p")
            with pytest.raises(ToolError, match="no document with the id"):
                await tool.fetch("x")
            with pytest.raises(ToolError, match="no document contains"):
                await tool.search("zebra")
        finally:
            server.terminate()


async def test_what_an_engine_needs_is_checked() -> None:
    for settings, why in (
        ({}, "engine index needs corpus"),
        ({"engine": "simulated", "url": "http://x"}, "needs model"),
        ({"engine": "serper", "api_key_env": "NO_SUCH_KEY"}, "the environment has no NO_SUCH_KEY"),
        ({"engine": "google"}, "engine is 'google'"),
    ):
        with pytest.raises(RecipeError, match=why):
            Search(**settings)
    with pytest.raises(TaskError, match="engine server has none"):
        await opened(Task.of("t", "?", noise=0.5), engine="server", url="http://x")
