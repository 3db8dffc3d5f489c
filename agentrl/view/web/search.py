"""Full text."""

from __future__ import annotations

from typing import Any

import msgspec

from agentrl.types.errors import StoreError
from agentrl.view.web.library import Json, RunLibrary
from agentrl.view.web.query import Query
from agentrl.view.web.text_index import Passage, passages, snippet

_COUNTED = 10_000


def search(library: RunLibrary, ask: Query) -> Json:
    """The turns that hold all words of a query, newest first, with the text around them."""
    run, query = library.run(ask.needed("run")), ask.text("q") or ""
    hits = run.texts.find(query, ask.integer("limit", 50, at_most=200), ask.integer("offset", 0))
    total = run.texts.count(query, _COUNTED + 1)
    rows = {
        id: {"reward": reward, "iteration": iteration, "split": split}
        for id, reward, iteration, split in run.reader.select(
            f"id, reward, iteration, split FROM all_episodes WHERE id IN ({', '.join('?' * len(hits))})",
            [id for id, _ in hits],
        )
    }
    texts: dict[str, list[Passage]] = {}
    found: list[dict[str, Any]] = []
    for id, turn in hits:
        if id not in texts:
            try:
                texts[id] = list(passages(run.reader.get(id)))
            except StoreError:
                texts[id] = []
        where, pieces = snippet([each for each in texts[id] if each.turn == turn], query)
        found.append({"id": id, "turn": turn, "where": where, "snippet": pieces, **rows.get(id, {})})
    return {
        "hits": found,
        "total": min(total, _COUNTED),
        "capped": total > _COUNTED,
        "index": msgspec.to_builtins(run.texts.progress()),
    }
