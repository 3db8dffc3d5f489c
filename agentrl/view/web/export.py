"""A run as one page: the same app, with the answers that it would ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.store.reader import RunReader
from agentrl.types.errors import AgentRLError, StoreError
from agentrl.types.parts.image import ImageRefused, data_url
from agentrl.types.reporter import Reporter
from agentrl.view.web import files
from agentrl.view.web.endpoints import answer
from agentrl.view.web.library import Json, RunLibrary
from agentrl.view.web.query import Query
from agentrl.view.web.rows import extreme_turns, rows_of

_IMAGES = 64_000_000
"""Characters of all images of a page."""
_TOKENS = 2_000_000
"""Tokens of all episodes of a page."""
_ALWAYS = ("runs", "head", "metrics", "facets", "failures")
_OFF = ("search", "recompute", "compare", "text")


def export(library: RunLibrary, out: Path, episodes: int, reporter: Reporter | None = None) -> Path:
    """Writes the page of a run.

    Args:
        library: of one run. Of its text index only the episodes of the page are built.
        episodes: maximum number of episodes on the page, in whole groups, spread evenly over the run. Those of its best
            and of its worst turn are among them, with as many of their groups as there is room for.
        reporter: is told how many episodes are indexed, and how many are on the page.

    Raises:
        AgentRLError: the library is a folder of runs, or the run cannot be read.
    """
    if not library.single:
        raise AgentRLError(
            "a page is of one run, and this is a folder", place=str(library.root), remedy="name a run: RUNS/NAME"
        )
    (key,) = library.keys()
    run, reporter = library.run(key), reporter or Reporter()
    turns = [each["id"] for each in extreme_turns(run).values() if each is not None]
    chosen = sample(run.reader, episodes, turns)
    reporter.phase("indexing", len(chosen))
    run.texts.add(chosen, lambda done: reporter.step(done, {}))
    page = _Page(library, key)
    reporter.phase("writing the page", len(chosen))
    for number, id in enumerate(chosen, 1):
        page.add(id)
        reporter.step(number, {})
    data = {
        "exported": True,
        "run": key,
        "get": {name: page.ask(name) for name in _ALWAYS},
        "rows": rows_of(run, chosen),
        "episodes": page.episodes,
        "tokens": page.tokens,
        "groups": page.groups,
        "blobs": page.blobs,
        "total": run.reader.select("COUNT(*) FROM all_episodes")[0][0],
    }
    head = data["get"]["head"]
    head["can"] = {**head["can"], **dict.fromkeys(_OFF, False)}
    index = data["get"]["facets"]["index"]
    if index["state"] == "building":
        index["state"] = "sampled"  # it grows no more: tools and components are those of the page
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(files.bundled(data), encoding="utf-8")
    return out


class _Page:
    """The answers of a page about single episodes."""

    def __init__(self, library: RunLibrary, key: str) -> None:
        self._library, self._key = library, key
        self._run = library.run(key)
        self._room, self._tokens = _IMAGES, _TOKENS
        self.episodes: dict[str, Json] = {}
        self.tokens: dict[str, Json] = {}
        self.groups: dict[str, Json] = {}
        self.blobs: dict[str, str] = {}

    def ask(self, name: str, **asked: str) -> Any:
        """Answers a request."""
        return answer(self._library, name, Query({"run": self._key, **asked}))

    def add(self, id: str) -> None:
        """Adds an episode, and its group. A damaged one is left out: the page says which."""
        try:
            found = self._run.reader.get(id)
            self.episodes[id] = self.ask("episode", id=id)
        except (StoreError, AgentRLError):
            return
        if found.group_id not in self.groups:
            self.groups[found.group_id] = self.ask("group", id=found.group_id)
        if (size := sum(len(node.token_ids) for node in found.nodes)) <= self._tokens:
            self._tokens -= size
            self.tokens[id] = self.ask("tokens", id=id, limit="200000")
        for part in found.shown_images():
            self._add_image(part["blob"])

    def _add_image(self, sha: str) -> None:
        """Adds an image, if there is room and it is intact."""
        if sha in self.blobs:
            return
        try:
            url = data_url(self._run.reader.get_blob(sha))
        except (StoreError, ImageRefused):
            return
        if len(url) <= self._room:
            self._room -= len(url)
            self.blobs[sha] = url


def sample(run: RunReader, limit: int, wanted: Sequence[str] = ()) -> list[str]:
    """Samples whole groups, evenly spread over the run, in its order. Returns the ids of their episodes.

    Args:
        wanted: ids of episodes that come first, and after them the rest of their groups.
    """
    listed = run.select("id, group_id FROM all_episodes ORDER BY created_at, id")
    groups: dict[str, list[str]] = {}
    for id, group in listed:
        groups.setdefault(group, []).append(id)
    members = list(groups.values())
    # The last and the first group, then the middle, then the quarters: any prefix is spread evenly.
    place_of = {id: place for place, ids in enumerate(members) for id in ids}
    chosen = set([id for id in dict.fromkeys(wanted) if id in place_of][:limit])
    first = dict.fromkeys(place_of[id] for id in wanted if id in chosen)
    for place in dict.fromkeys([*first, *_spread(len(members))]):
        rest, room = [id for id in members[place] if id not in chosen], limit - len(chosen)
        if len(rest) <= room or not chosen or place in first:
            chosen.update(rest[:room])
    return [id for id, _ in listed if id in chosen]


def _spread(count: int) -> list[int]:
    """0 .. count - 1, ends first, then ever finer between them."""
    order = dict.fromkeys([count - 1, 0]) if count else {}
    step = count / 2
    while step >= 0.5:
        order.update(dict.fromkeys(min(count - 1, int(k * step)) for k in range(int(count / step) + 1)))
        step /= 2
    return list(order)
