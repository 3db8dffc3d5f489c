"""The search server with one index, a model in place of an engine, and stores of vectors and indexes that fail."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from agentrl.tools.builtin.search import dense, minilm, requests, served, simulated
from agentrl.tools.builtin.search.document import Document
from agentrl.tools.builtin.search.tool import _keep
from agentrl.types.errors import InfraError


class Index:
    """An index of one document."""

    def find(self, query: str, k: int) -> list[Document]:
        return [Document("d", query, "text")][:k]

    def get(self, id: str) -> Document | None:
        return Document("d", "Title", "text") if id == "d" else None

    def __len__(self) -> int:
        return 1


async def test_the_server_tells_its_number_of_documents_and_refuses_other_numbers_of_hits() -> None:
    async with TestClient(TestServer(served.application(Index()))) as client:
        assert await (await client.get("/")).json() == {"documents": 1}
        for k in ("0", "1001", "many"):
            refused = await client.get("/find", params={"q": "x", "k": k})
            assert (refused.status, await refused.text()) == (400, "k is a number from 1 to 1000")
        url = str(client.make_url(""))
        assert await served.find("x", 3, url, 30.0) == [Document("d", "x", "text")]
        assert await served.get("d", url, 30.0) == Document("d", "Title", "text")
        assert await served.get("none", url, 30.0) is None


async def test_another_server_in_the_place_of_ours_is_named() -> None:
    async def other(request: web.Request) -> web.Response:
        return web.json_response({"hits": []})

    app = web.Application()
    app.add_routes([web.get("/find", other), web.post("/chat/completions", other)])
    async with TestClient(TestServer(app)) as client:
        url = str(client.make_url(""))
        with pytest.raises(InfraError, match="the answer is not that of `agentrl search serve`") as refused:
            await served.find("x", 3, url, 30.0)
        assert refused.value.place == f"{url.rstrip('/')}/find"
        about: dict[str, Any] = {"question": "q", "answer": "a", "noisy": False, "seed": 0}
        with pytest.raises(InfraError, match=r"not a chat completion: \{'hits': \[\]\}"):
            await simulated.simulated("x", 3, url, "m", None, 30.0, **about)


async def test_a_request_that_the_server_takes_the_second_time_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refused, then answered a plain text: it may have come back in between."""
    answers: list[Any] = [requests._NoAnswer("status 400", "status 400", refused=True), {}, {"found": 1}]

    async def once(*given: Any) -> Any:
        return answers.pop(0)

    monkeypatch.setattr(requests, "_once", once)
    assert await requests.ask("GET", "http://a.test", said="x", timeout_s=1.0) == {"found": 1}


def test_vectors_are_computed_where_none_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.ones((1, minilm.WIDTH), np.float32)
    monkeypatch.setattr(dense, "encoder", lambda: SimpleNamespace(encode=lambda texts, told: vectors))
    blocked = tmp_path / "cache"
    blocked.write_text("a file, and no folder")
    assert dense._part(["x"], blocked, 0, 1) is vectors
    (tmp_path / "folder").mkdir()
    assert dense._part(["x"], tmp_path / "folder", 0, 1) is vectors
    monkeypatch.setattr(dense, "encoder", lambda: pytest.fail("they are kept"))
    assert np.array_equal(dense._part(["x"], tmp_path / "folder", 0, 1), vectors)


def test_the_similarity_of_two_texts_is_the_cosine_of_their_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"one": [1.0, 0.0], "other": [0.6, 0.8]}
    encoder = SimpleNamespace(encode=lambda texts: np.array([made[text] for text in texts]))
    monkeypatch.setattr(minilm, "encoder", lambda: encoder)
    assert minilm.similarity("one", "other") == pytest.approx(0.6)


def test_an_index_that_cannot_be_saved_leaves_nothing(tmp_path: Path) -> None:
    def save(draft: Path, show_progress: bool) -> None:
        (draft / "half").write_text("")
        raise OSError("no space")

    _keep(SimpleNamespace(save=save), tmp_path / "index")
    assert [*tmp_path.iterdir()] == []
