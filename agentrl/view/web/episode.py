"""One episode, as the page shows it: its record, its credit, and figures of each turn."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from agentrl.store import rescored
from agentrl.store.codec import StoredCredit
from agentrl.types.episode import MAIN, Episode, Turn, prompt_of
from agentrl.types.errors import StoreError
from agentrl.types.figures.of_episodes import earned, success_of
from agentrl.view.web.library import Helpers, Json, RunLibrary, ViewedRun
from agentrl.view.web.query import Query, RequestError
from agentrl.view.web.rows import credit_of
from agentrl.view.web.zero_credit import reasons

_LONGEST = 20_000
"""Characters of a text that are sent with an episode."""
_BUDGET = 8_000_000
"""Characters of all texts of an episode; beyond it each has `_SHORT`."""
_SHORT = 300
_THINKING = re.compile(r"\A\s*(?:<think>)?(.*?)</think>\s*", re.DOTALL)
_CALLS = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)


def episode(library: RunLibrary, ask: Query) -> Json:
    """An episode, with its long texts cut."""
    run = library.run(ask.needed("run"))
    shown = whole(run, ask.needed("id"), library.helpers)
    cut = Cut()
    return {**cut.of(shown), "cut": cut.places}


def whole(run: ViewedRun, id: str, helpers: Helpers) -> Json:
    """An episode with all its texts."""
    found = run.reader.get(id)
    credit = credit_of(run, id)
    record = dict(msgspec.to_builtins(msgspec.structs.replace(found, nodes=[])))
    record = _defaults(found) | record
    record.pop("nodes", None)
    record["turns"] = [{**_TURN_DEFAULTS, **turn} for turn in record["turns"]]
    for turn in record["turns"]:
        turn["calls"] = [{**_CALL_DEFAULTS, **call} for call in turn["calls"]]
    siblings = run.reader.select(
        "id, reward, turns, status FROM all_episodes WHERE group_id = ? ORDER BY id LIMIT 200", [found.group_id]
    )
    return {
        "episode": record,
        "reward": earned(found),
        "success": success_of(found),
        "sampled_tokens": found.sampled_tokens,
        "credit": None if credit is None else _filled(credit),
        "no_credit": reasons(run, found, credit, _needs(helpers, credit)),
        "rescored": {name: msgspec.to_builtins(score) for name, score in rescored.of_episode(run.path, id).items()},
        "turns": list(_turns(run, found)),
        "probe": _command("probe", run, id),
        "show": _command("show", run, id),
        "lanes": _lanes(found),
        "forks": [{"id": other, "turn": turn} for other, turn in _forks(run, found)],
        "parent": None if found.parent is None else msgspec.to_builtins(found.parent),
        "timing": found.timings,
        "siblings": [dict(zip(("id", "reward", "turns", "status"), row, strict=True)) for row in siblings],
        **_neighbours(run, id),
    }


_TURN_DEFAULTS: Json = {
    **{"state": None, "agent": "agent", "calls": [], "observations": [], "rewards": {}, "reward": None, "points": []},
    **{"generate_s": 0.0, "tools_s": 0.0, "gold_logprob": None, "usage": None, "tools": None, "context": MAIN},
    "spans": [],
}
_CALL_DEFAULTS: Json = {"raised": "", "dropped": 0, "blob": None, "foreign": "", "images": [], "points": []}


def _defaults(found: Episode) -> Json:
    """The fields of a record that equal their defaults, which it leaves out."""
    return {
        name: msgspec.to_builtins(getattr(found, name))
        for name in found.__struct_fields__
        if name not in ("nodes", "turns")
    } | {"turns": []}


def _filled(credit: StoredCredit) -> Json:
    names = ("estimator", "turn_advantages", "parts", "iteration", "note")
    return {name: getattr(credit, name) for name in names}


def _needs(helpers: Helpers, credit: StoredCredit | None) -> Sequence[str]:
    """The columns that the estimator of a credit reads; none: it is no built-in one."""
    if credit is None:
        return ()
    return next((each["needs"] for each in helpers.estimators() if each["name"] == credit.estimator), ())


def _turns(run: ViewedRun, found: Episode) -> Iterator[Json]:
    """Figures of each turn."""
    depth = depths(found)
    last: dict[str, int] = {}
    gains = _gains(found)
    for turn in found.turns:
        node = found.nodes[turn.node] if 0 <= turn.node < len(found.nodes) else None
        thinking, said = parted(turn.text)
        prompt = 0 if node is None or (end := prompt_of(found.nodes, turn.node)) < 0 else depth[end]
        before = last.get(turn.context)
        fresh = before is None or node is None or before not in ancestors(found, turn.node)
        yield {
            "index": turn.index,
            "node": turn.node,
            "thinking": thinking,
            "said": said,
            "tokens": 0 if node is None else len(node.token_ids),
            "prompt_tokens": prompt,
            "gained_tokens": prompt if fresh or before is None else prompt - depth[before],
            "logprob": sum(node.logprobs) / len(node.logprobs) if node is not None and node.logprobs else None,
            "versions": [] if node is None else sorted({span.version for span in node.versions}),
            "queue_s": getattr(turn, "queue_s", None),
            "decode_s": getattr(turn, "decode_s", None),
            "generate_s": turn.generate_s,
            "tools_s": turn.tools_s,
            "gold_logprob": turn.gold_logprob,
            "gain": gains.get(turn.index),
            "fork": _command("fork", run, found.id, "--turn", str(turn.index)),
        }
        if node is not None:
            last[turn.context] = turn.node


def depths(found: Episode) -> list[int]:
    """The number of tokens from the root to the end of each node."""
    depth: list[int] = []
    for node in found.nodes:
        depth.append((depth[node.parent] if node.parent >= 0 else 0) + len(node.token_ids))
    return depth


def ancestors(found: Episode, node: int) -> Iterator[int]:
    """Yields the nodes before a node, the nearest first."""
    at = found.nodes[node].parent
    while at >= 0:
        yield at
        at = found.nodes[at].parent


def _gains(found: Episode) -> dict[int, float]:
    """By how much each turn of the policy made the gold answer more probable."""
    own = [turn for turn in found.own_turns if turn.gold_logprob is not None]
    return {turn.index: (after.gold_logprob or 0.0) - (turn.gold_logprob or 0.0) for turn, after in pairwise(own)}


def parted(text: str) -> tuple[str, str]:
    """Returns the thoughts of a reply, and what it says without them and without its calls."""
    thought = _THINKING.match(text) if "</think>" in text else None
    rest = text[thought.end() :] if thought else text
    if thought is None and rest.lstrip().startswith("<think>"):  # it was cut off while thinking
        return rest.lstrip().removeprefix("<think>").strip(), ""
    return (thought[1].strip() if thought else ""), _CALLS.sub("", rest).strip()


def _command(name: str, run: ViewedRun, *words: str) -> str:
    return shlex.join(["agentrl", name, str(run.path), *words])


def _lanes(found: Episode) -> list[Json]:
    """Conversations of an episode, in the order in which they began."""
    turns: dict[str, list[Turn]] = {MAIN: []}
    for turn in found.turns:
        turns.setdefault(turn.context, []).append(turn)
    lanes = []
    for name, own in turns.items():
        context = found.contexts.get(name)
        lanes.append(
            {
                "name": name,
                "context": name,
                "role": own[0].agent if own else "agent" if context is None else context.role,
                "policy": "policy" if context is None else context.policy,
                "version": None if context is None else context.version,
                "turns": [turn.index for turn in own],
            }
        )
    return [lane for lane in lanes if lane["turns"]] or lanes


def _forks(run: ViewedRun, found: Episode) -> list[tuple[str, int]]:
    """Forks of an episode in its own run, and their first turns."""
    like = run.reader.select(
        "id FROM all_episodes WHERE group_id = ? AND instr(id, ?) = 1 ORDER BY id LIMIT 50",
        [found.group_id, f"{found.id}."],
    )
    damaged: list[StoreError] = []  # the damage is told with the run
    forks = run.reader.episodes([id for (id,) in like], damaged=damaged)
    return [(fork.id, fork.parent.turn) for fork in forks if fork.parent is not None]


def _neighbours(run: ViewedRun, id: str) -> Json:
    """The episodes before and after one, in the order in which they began."""
    began = "(SELECT created_at FROM all_episodes WHERE id = ?)"
    found = {}
    for name, sign, order in (("previous", "<", "DESC"), ("next", ">", "ASC")):
        near = run.reader.select(
            f"id FROM all_episodes WHERE created_at {sign}= {began} AND (created_at, id) {sign} ({began}, ?) "
            f"ORDER BY created_at {order}, id {order} LIMIT 1",
            [id, id, id],
        )
        found[name] = near[0][0] if near else None
    return found


class Cut:
    """Cuts long texts of JSON.

    Attributes:
        places: where, as JSON pointers, with the length shown and the true one.
    """

    def __init__(self, longest: int = _LONGEST, budget: int = _BUDGET) -> None:
        self.places: list[Json] = []
        self._longest, self._left = longest, budget

    def of(self, value: Any, place: str = "") -> Any:
        """Returns the value with its long texts cut."""
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, dict):
            return {name: self.of(each, f"{place}/{_escaped(name)}") for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(each, f"{place}/{at}") for at, each in enumerate(value)]
        return value

    def _text(self, text: str, place: str) -> str:
        most = self._longest if self._left > 0 else min(self._longest, _SHORT)
        self._left -= min(len(text), most)
        if len(text) <= most:
            return text
        self.places.append({"path": place, "shown": most, "size": len(text)})
        return text[:most]


def _escaped(name: Any) -> str:
    return str(name).replace("~", "~0").replace("/", "~1")


def text(library: RunLibrary, ask: Query) -> Json:
    """A piece of a text of an episode."""
    run = library.run(ask.needed("run"))
    path = ask.needed("path")
    value = _at(whole(run, ask.needed("id"), library.helpers), path)
    if not isinstance(value, str):
        raise RequestError(404, f"{path!r} is no text", remedy="take a path from `cut`")
    start, length = ask.integer("start", 0), ask.integer("length", 200_000, at_most=1_000_000)
    return {"text": value[start : start + length], "start": start, "size": len(value)}


def _at(value: Any, pointer: str) -> Any:
    """The value at a JSON pointer; None: nothing is there."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, Sequence) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


_IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


def blob(library: RunLibrary, ask: Query) -> tuple[bytes, str, int]:
    """The bytes of a blob or of a piece of it, their type, and the size of the whole."""
    run, sha = library.run(ask.needed("run")), ask.needed("sha")
    if not re.fullmatch(r"[0-9a-f]{64}", sha):
        raise RequestError(422, f"{sha[:80]!r} is no hash of a blob")
    data = run.reader.get_blob(sha)
    kind = next((kind for start, kind in _IMAGES.items() if data.startswith(start)), "text/plain; charset=utf-8")
    if kind == "image/webp" and data[8:12] != b"WEBP":
        kind = "text/plain; charset=utf-8"
    start, length = ask.integer("start", 0), ask.integer("length", len(data))
    return data[start : start + length], kind, len(data)
