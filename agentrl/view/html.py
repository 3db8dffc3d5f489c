"""Exports a run as one self-contained static HTML page, without a server or external resources."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from agentrl.store import rescored
from agentrl.store.index import EpisodeRow
from agentrl.store.reader import RunReader
from agentrl.store.rescored import Rescore
from agentrl.types.episode import Episode
from agentrl.types.errors import StoreError
from agentrl.types.figures.of_episodes import earned, turns_of
from agentrl.types.parts.image import ImageRefused, data_url
from agentrl.types.parts.placeholders import placed
from agentrl.view.summary import series, summarise

_MARK = "/*RUN-DATA*/"
_FAILURES = 500


def export_html(
    run: RunReader, out: str | Path, *, episodes: int = 200, decode: Callable[[int], str] | None = None
) -> Path:
    """Writes the page.

    Args:
        episodes: maximum number of episodes on the page, in whole groups, spread evenly over the run.
        decode: token id -> text, for the token view; without it ids are shown.

    Returns:
        The path of the page.
    """
    rows = run.rows()
    chosen = _sample(rows, episodes)
    damaged: list[StoreError] = []
    rescores = {name: rescored.load(run.path, name) for name in rescored.names(run.path)}
    shown = run.episodes([row.id for row in chosen], damaged=damaged)
    images = PageImages(run)
    records = [_record(run, episode, rescores, images) for episode in shown]
    data = {
        "name": _name(run),
        "info": run.info,
        "summary": msgspec.to_builtins(summarise(run)),
        "curves": series(run.metrics()),
        "total": len(rows),
        "episodes": records,
        "failures": run.failures()[-_FAILURES:],
        "damaged": [*run.damage, *(str(error) for error in damaged)],
        "vocabulary": _vocabulary(records, decode),
        "images": images.urls,
    }
    page = resources.files("agentrl.view").joinpath("page.html").read_text(encoding="utf-8")
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page.replace(_MARK, _embeddable(data)), encoding="utf-8")
    return out


def _embeddable(data: Any) -> str:
    """JSON that no content can break out of: `</script>` and `<!--` cannot occur without a `<`."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str).replace("<", "\\u003c")


def _sample(rows: list[EpisodeRow], limit: int) -> list[EpisodeRow]:
    """Samples whole groups, evenly spread over the run, in its order."""
    groups: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        groups.setdefault(row.group_id, []).append(row)
    members = list(groups.values())
    # The last and the first group, then the middle, then the quarters: any prefix is spread evenly.
    chosen: list[EpisodeRow] = []
    for place in _spread(len(members)):
        room = limit - len(chosen)
        if len(members[place]) <= room or not chosen:
            chosen += members[place][:room]
    wanted = {row.id for row in chosen}
    return [row for row in rows if row.id in wanted]


def _spread(count: int) -> list[int]:
    """0 .. count - 1, ends first, then ever finer between them."""
    order = dict.fromkeys([count - 1, 0]) if count else {}
    step = count / 2
    while step >= 0.5:
        order.update(dict.fromkeys(min(count - 1, int(k * step)) for k in range(int(count / step) + 1)))
        step /= 2
    return list(order)


class PageImages:
    """The images of a page, as data URLs by their hash, up to `most` characters; the others are a line each."""

    def __init__(self, run: RunReader, most: int = 64_000_000) -> None:
        self._run, self._room = run, most
        self.urls: dict[str, str] = {}

    def add(self, part: dict[str, Any]) -> None:
        """Adds an image if it fits the size limit and its blob is intact."""
        if part["blob"] in self.urls:
            return
        with contextlib.suppress(StoreError, ImageRefused):
            url = data_url(self._run.get_blob(part["blob"]))
            if len(url) <= self._room:
                self._room -= len(url)
                self.urls[part["blob"]] = url


def _record(
    run: RunReader, episode: Episode, rescores: dict[str, dict[str, Rescore]], images: PageImages
) -> dict[str, Any]:
    """Converts an episode for the page: as stored, with rounded log-probabilities and its credit."""
    record: dict[str, Any] = msgspec.to_builtins(episode)
    own = {part["blob"]: None for part in episode.shown_images()}
    for part in episode.shown_images():
        images.add(part)
    for node in record.setdefault("nodes", []):  # an episode that failed before its first token has none
        for found in placed(node["token_ids"], own):  # a browser's numbers are too short for them
            node["token_ids"][found.at] = -1
        if node.get("logprobs"):
            node["logprobs"] = [round(value, 3) for value in node["logprobs"]]
    credit = run.credit(episode.id)
    record["credit"] = msgspec.to_builtins(credit) if credit else None
    record |= {"reward": earned(episode), "own_turns": turns_of(episode), "sampled": episode.sampled_tokens}
    again = {name: scores[episode.id] for name, scores in rescores.items() if episode.id in scores}
    record["rescored"] = msgspec.to_builtins(again)
    return record


def _vocabulary(records: list[dict[str, Any]], decode: Callable[[int], str] | None) -> dict[int, str]:
    if decode is None:
        return {}
    used = {token for record in records for node in record["nodes"] for token in node["token_ids"]}
    return {token: decode(token) if token >= 0 else "[image]" for token in sorted(used)}


def _name(run: RunReader) -> str:
    recipe = run.info.get("recipe")
    return str((recipe.get("name") if isinstance(recipe, dict) else None) or run.path.resolve().name)
