"""Web search by the API of Serper (and compatible services) or of a SearXNG instance."""

from __future__ import annotations

from typing import Any

from agentrl.tools.builtin.search.document import Document
from agentrl.tools.builtin.search.requests import ask, key_of
from agentrl.types.errors import InfraError

SERPER = "https://google.serper.dev/search"


async def serper(query: str, k: int, url: str | None, api_key_env: str | None, timeout_s: float) -> list[Document]:
    """Returns the hits of `POST url {"q": ..., "num": ...}` with the header X-API-KEY: its list `organic`."""
    key = key_of(api_key_env)
    headers = {"X-API-KEY": key} if key else None
    found = await ask(
        "POST",
        url or SERPER,
        said=query,
        body=lambda text: {"q": text, "num": k},
        headers=headers,
        timeout_s=timeout_s,
    )
    return _documents(found, "organic", "link", "snippet", k, url or SERPER)


async def searxng(query: str, k: int, url: str | None, api_key_env: str | None, timeout_s: float) -> list[Document]:
    """Returns the hits of `GET url/search?q=...&format=json`: `results` with url, title and content."""
    key = key_of(api_key_env)
    headers = {"Authorization": f"Bearer {key}"} if key else None
    at = f"{str(url).rstrip('/')}/search"
    found = await ask(
        "GET",
        at,
        said=query,
        query=lambda text: {"q": text, "format": "json"},
        headers=headers,
        timeout_s=timeout_s,
    )
    return _documents(found, "results", "url", "content", k, at)


def _documents(found: Any, hits: str, link: str, text: str, k: int, url: str) -> list[Document]:
    listed = found.get(hits, []) if isinstance(found, dict) else None
    if not isinstance(listed, list) or not all(isinstance(hit, dict) for hit in listed):
        raise InfraError(f"the answer has no list {hits!r}: {str(found)[:200]}", place=url)
    return [
        Document(str(hit[link]), str(hit.get("title") or ""), str(hit.get(text) or ""))
        for hit in listed
        if hit.get(link)
    ][:k]
