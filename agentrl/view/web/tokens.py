"""Tokens of an episode, and the prompt that a turn was sampled from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentrl.store.tokens import TurnTokens
from agentrl.types.episode import Episode, Node, path_to, prompt_of
from agentrl.types.parts.placeholders import placed
from agentrl.view.web.episode import depths
from agentrl.view.web.library import Decode, Json, RunLibrary, ViewedRun
from agentrl.view.web.query import Query, RequestError
from agentrl.view.web.rows import credit_of

_LONGEST = 200_000
"""Characters of a prompt that are sent."""
IMAGE = -1
"""The token of an image: a browser's numbers are too short for the true ones."""


def tokens(library: RunLibrary, ask: Query) -> Json:
    """The nodes of an episode, token by token, from the token `start` on."""
    run = library.run(ask.needed("run"))
    found, decode = run.reader.get(ask.needed("id")), run.decoder(library.helpers)
    start, limit = ask.integer("start", 0), ask.integer("limit", 20_000, at_most=200_000) or 1
    credit = credit_of(run, found.id)
    advantages = {} if credit is None else dict(enumerate(credit.turn_advantages))
    turn_of = {turn.node: turn.index for turn in found.turns}
    shown, at, left = [], 0, limit
    total = sum(len(node.token_ids) for node in found.nodes)
    ids = token_ids(found)
    trained = _trained(run, found.id)
    for index, node in enumerate(found.nodes):
        size = len(node.token_ids)
        first = max(0, start - at)
        if (first < size or (size == 0 and at >= start)) and left > 0:
            piece = slice(first, first + left)
            shown.append(_node(index, node, ids[index], piece, turn_of.get(index), advantages, trained, decode))
            left -= len(ids[index][piece])
        at += size
    end = start + limit - left
    has = {"mask": bool(found.nodes), "logprob": any(node.logprobs for node in found.nodes)}
    has |= {"version": any(node.versions for node in found.nodes), "advantage": bool(advantages or trained)}
    has |= dict.fromkeys(("ratio", "entropy", "clip"), bool(trained))
    return {
        "nodes": shown,
        "drift": msgspec.to_builtins(found.drift),
        "start": start,
        "total": total,
        "next": end if end < total else None,
        "decoded": decode is not None,
        "has": [name for name, there in has.items() if there],
    }


def _node(
    index: int,
    node: Node,
    ids: Sequence[int],
    piece: slice,
    turn: int | None,
    advantages: dict[int, float],
    trained: dict[int, TurnTokens],
    decode: Decode | None,
) -> Json:
    """A piece of a node."""
    shown, own = ids[piece], turn if node.kind == "sampled" else None
    return {
        "index": index,
        "parent": node.parent,
        "kind": node.kind,
        "turn": turn,
        "offset": piece.start,
        "token_ids": shown,
        "text": None if decode is None else texts_of(shown, decode),
        "logprobs": [round(value, 4) for value in node.logprobs[piece]] if node.logprobs else None,
        "versions": [[span.version, span.start, span.end] for span in node.versions],
        "advantage": None if own is None else advantages.get(own),
        "trainer": None if own is None else _numbers(trained.get(own), piece),
    }


def _trained(run: ViewedRun, id: str) -> dict[int, TurnTokens]:
    """Returns the numbers of the last update that trained each turn of an episode, by turn."""
    records = run.reader.tokens(episode_id=id)
    return {turn.turn: turn for record in sorted(records, key=lambda each: each.iteration) for turn in record.turns}


def _numbers(found: TurnTokens | None, piece: slice) -> Json | None:
    """The numbers of a piece of a turn, by the names of the page."""
    if found is None:
        return None
    columns = {name: getattr(found, name)[piece] for name in ("advantage", "logprob", "ratio", "entropy")}
    rounded = {name: [round(value, 5) for value in values] for name, values in columns.items()}
    return {**rounded, "clip": found.clipped[piece]}


def token_ids(found: Episode) -> list[list[int]]:
    """The tokens of each node, those of images as `IMAGE`."""
    own = {part["blob"]: None for part in found.shown_images()}
    nodes = [[*node.token_ids] for node in found.nodes]
    for ids, node in zip(nodes, found.nodes, strict=True):
        for image in placed(node.token_ids, own):
            ids[image.at] = IMAGE
    return nodes


def texts_of(ids: Iterable[int], decode: Decode) -> list[str]:
    """The text of each token."""
    return ["[image]" if id == IMAGE else decode(id) for id in ids]


def prompt(library: RunLibrary, ask: Query) -> Json:
    """The prompt of a turn, and what it has more than the one before it and its reply."""
    run = library.run(ask.needed("run"))
    found, decode = run.reader.get(ask.needed("id")), run.decoder(library.helpers)
    number = ask.integer("turn", 0)
    turn = next((turn for turn in found.turns if turn.index == number), None)
    if turn is None or not 0 <= turn.node < len(found.nodes):
        raise RequestError(404, f"episode {found.id!r} has no tokens of a turn {number}")
    before = [each for each in found.turns if each.context == turn.context and each.index < number]
    path = path_to(found.nodes, prompt_of(found.nodes, turn.node))
    fresh = not before or before[-1].node not in path
    gained = path if fresh else path[path.index(before[-1].node) + 1 :]
    ids = token_ids(found)
    text = _text([id for node in path for id in ids[node]], decode)
    return {
        "turn": number,
        "tokens": depths(found)[path[-1]] if path else 0,
        "gained": {
            "tokens": sum(len(ids[node]) for node in gained),
            "text": _end(_text([id for node in gained for id in ids[node]], decode)),
            "fresh": fresh,
        },
        "text": _end(text),
        "size": 0 if text is None else len(text),
        "decoded": decode is not None,
    }


def _text(ids: Sequence[int], decode: Decode | None) -> str | None:
    return None if decode is None else "".join(texts_of(ids, decode))


def _end(text: str | None) -> Any:
    return text if text is None else text[-_LONGEST:]
