"""Full text, tools, reward components and policy versions of a run, which its index lacks, in a file of the cache.

A thread builds it from the stored episodes, in pieces, and goes on when the run grows. The run is only read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentrl.store.reader import RunReader
from agentrl.types.episode import Episode, Turn
from agentrl.types.errors import StoreError
from agentrl.types.figures.of_episodes import success_of
from agentrl.types.parts.content import text_of

_FORMAT = 1
_PIECE = 50
"""Episodes of a transaction."""
_LONGEST = 200_000
"""Characters of one text that are searched."""
_YIELD_S = 0.5
"""Time for which an episode waits at most for requests to be answered."""
_UNUSED_S = 30 * 24 * 3600.0
"""Time after which the file of a run that nobody looked at is deleted."""
_TURN_BITS = 20
"""A row of `texts` is a turn: its number is that of the episode, shifted, plus that of the turn and 1; 0: the rest."""

_TABLES = """
CREATE TABLE episode (n INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, success REAL, first INTEGER, last INTEGER);
CREATE TABLE component (id TEXT, name TEXT, value REAL, PRIMARY KEY (id, name)) WITHOUT ROWID;
CREATE INDEX component_name ON component (name, value);
CREATE TABLE tool (id TEXT, name TEXT, count INTEGER, PRIMARY KEY (id, name)) WITHOUT ROWID;
CREATE INDEX tool_name ON tool (name);
CREATE TABLE mark (shard TEXT, offset INTEGER);
CREATE VIRTUAL TABLE texts USING fts5(body, content='', columnsize=0);
"""

SCHEMA = "texts"
"""Name of the file's tables in `RunReader.select`."""

WITH_WORDS = f"SELECT rowid >> {_TURN_BITS} FROM {SCHEMA}.texts WHERE texts MATCH ?"
"""Numbers of the episodes of which a turn holds the words of a query."""


class Passage(NamedTuple):
    """A text of an episode. `turn` is None for what belongs to none."""

    turn: int | None
    where: str
    text: str


class Progress(msgspec.Struct, frozen=True):
    """Progress of the index: `ready`, `building`, or `failed` with its problem."""

    state: str
    done: int
    of: int
    problem: str | None = None


class Requests:
    """The requests that are being answered now: `with requests: ...`. The index is built between them.

    SQLite gives up the interpreter for each row of an answer. Beside a thread that computes, it gets it back only
    after 5 ms, so that an answer of 1,000 rows would take 5 s.

    Attributes:
        number: how many there are.
    """

    def __init__(self) -> None:
        self.number = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self.number += 1

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self.number -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Waits until all are answered, at most `_YIELD_S`: beside a long one, the index still grows."""
        with self._changed:
            self._changed.wait_for(lambda: self.number == 0, _YIELD_S)


class TextIndex:
    """The file of one run.

    Args:
        cache: the folder of all of them.
        requests: what its thread waits for.

    Attributes:
        problem: the reason why it cannot be used or is incomplete; None: there is none.
        unreadable: places of the episodes that it could not read, by id.
    """

    def __init__(self, run: RunReader, cache: Path, requests: Requests) -> None:
        self._run, self._requests = run, requests
        self.path = cache / f"{run.id}-{hashlib.sha256(os.fsencode(run.path.resolve())).hexdigest()[:12]}.sqlite"
        self.problem: str | None = None
        self.unreadable: dict[str, str] = {}
        self._lacking: list[str] = []
        self._of: int | None = None
        self._mutex = threading.Lock()
        self._wake, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"text index of {run.path.name}", daemon=True)
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _delete_unused(cache)
            self._db = _opened(self.path)
            run.attach(self.path, SCHEMA)
        except (OSError, sqlite3.Error) as error:
            self.problem = f"the text index cannot be written: {error} ({self.path})"

    def begin(self) -> None:
        """Starts the thread that builds it."""
        if self.problem is None:
            self._thread.start()

    def wake(self) -> None:
        """Tells the thread that the run has grown."""
        self._of = None
        self._wake.set()

    def finish(self) -> None:
        """Builds all of it now."""
        while self.problem is None and self.build():
            pass

    def add(self, ids: Iterable[str], told: Callable[[int], None]) -> None:
        """Adds these episodes now, those that it lacks. `told` gets the number of episodes that are done."""
        known = {id for (id,) in self._run.select(f"id FROM {SCHEMA}.episode")} if self.usable else set()
        if self.usable:
            with self._mutex, self._db:
                for number, id in enumerate(ids, 1):
                    if id not in known:
                        self._add(id)
                    told(number)
                self._score_again()

    def close(self) -> None:
        """Stops the thread. What it has built remains."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self.problem is None:
            self._db.close()

    def progress(self) -> Progress:
        """Returns its progress."""
        if self._of is None:
            self._of = int(self._run.select("COUNT(*) FROM all_episodes")[0][0])
        of = self._of
        if self.problem is not None:
            return Progress("failed", 0, of, self.problem)
        done = min(of, self._run.select(f"COUNT(*) FROM {SCHEMA}.episode")[0][0] + len(self.unreadable))
        return Progress("ready" if done >= of else "building", done, of)

    @property
    def usable(self) -> bool:
        """True if its tables can be read."""
        return self.problem is None

    def find(self, query: str, limit: int, offset: int) -> list[tuple[str, int | None]]:
        """Returns the episodes and turns that hold all words of a query, newest first."""
        if not self.usable or not (asked := match(query)):
            return []
        what = f"rowid FROM {SCHEMA}.texts WHERE texts MATCH ? ORDER BY rowid DESC LIMIT ? OFFSET ?"
        rows = [row for (row,) in self._run.select(what, (asked, limit, offset))]
        ids = dict(
            self._run.select(
                f"n, id FROM {SCHEMA}.episode WHERE n IN ({', '.join('?' * len(rows))})",
                [row >> _TURN_BITS for row in rows],
            )
        )
        turns = ((row >> _TURN_BITS, (row & ((1 << _TURN_BITS) - 1)) - 1) for row in rows)
        return [(ids[n], None if turn < 0 else turn) for n, turn in turns if n in ids]

    def count(self, query: str, at_most: int) -> int:
        """Returns how many turns hold all words of a query, counted up to a limit."""
        if not self.usable or not (asked := match(query)):
            return 0
        some = f"SELECT rowid FROM {SCHEMA}.texts WHERE texts MATCH ? LIMIT ?"
        return int(self._run.select(f"COUNT(*) FROM ({some})", (asked, at_most))[0][0])

    def build(self) -> int:
        """Adds the next episodes that it lacks. Returns how many."""
        with self._mutex:
            if not self._lacking:
                unknown = f"NOT EXISTS (SELECT 1 FROM {SCHEMA}.episode t WHERE t.id = e.id)"
                found = self._run.select(
                    f"id FROM all_episodes e WHERE {unknown} ORDER BY shard DESC, offset DESC, id DESC"
                )
                self._lacking = [id for (id,) in found if id not in self.unreadable]
            ids, self._lacking[-_PIECE:] = self._lacking[-_PIECE:], []
            with self._db:
                for id in ids:
                    if self._closed.is_set():
                        break
                    self._requests.wait()
                    self._add(id)
                self._score_again()
            return len(ids)

    def _work(self) -> None:
        """Builds until it is closed."""
        while not self._closed.is_set():
            self._wake.clear()
            try:
                while not self._closed.is_set() and self.build():
                    time.sleep(0.001)  # others may want the lock
            except (OSError, sqlite3.Error, StoreError) as error:
                if not self._closed.is_set():
                    self.problem = f"the text index is incomplete: {error}"
                return
            if not self._closed.is_set():
                self._wake.wait()

    def _add(self, id: str) -> None:
        """Adds an episode. One that cannot be read is passed over."""
        try:
            episode = self._run.get(id)
        except StoreError as error:
            self.unreadable[id] = error.place or id
            return
        spans = [span.version for node in episode.nodes for span in node.versions]
        into = "INSERT OR IGNORE INTO episode (id, success, first, last) VALUES (?, ?, ?, ?)"
        added = self._db.execute(into, (id, success_of(episode), min(spans, default=None), max(spans, default=None)))
        if not added.rowcount or (n := added.lastrowid) is None:
            return  # another viewer of the run was faster
        tools = Counter(call.name for turn in episode.turns for call in turn.calls if call.name)
        self._db.executemany("INSERT INTO tool VALUES (?, ?, ?)", [(id, name, count) for name, count in tools.items()])
        self._add_components(episode)
        by_turn: dict[int, list[str]] = {}
        for passage in passages(episode):
            by_turn.setdefault(-1 if passage.turn is None else passage.turn, []).append(passage.text[:_LONGEST])
        self._db.executemany(
            "INSERT INTO texts (rowid, body) VALUES (?, ?)",
            [((n << _TURN_BITS) + turn + 1, _plain("\n".join(texts))) for turn, texts in by_turn.items()],
        )

    def _add_components(self, episode: Episode) -> None:
        values = components_of(episode)
        self._db.executemany(
            "INSERT OR REPLACE INTO component VALUES (?, ?, ?)",
            [(episode.id, name, value) for name, value in values.items()],
        )

    def _score_again(self) -> None:
        """Follows the scores of groups, which come after their episodes."""
        mark = self._db.execute("SELECT shard, offset FROM mark").fetchone() or ("", -1)
        scored = self._run.select(
            "id, shard, offset FROM all_scores WHERE (shard, offset) > (?, ?) ORDER BY shard, offset", mark
        )
        for id in {id for id, _, _ in scored}:
            if self._db.execute("SELECT 1 FROM episode WHERE id = ?", (id,)).fetchone():
                with contextlib.suppress(StoreError):
                    episode = self._run.get(id)
                    self._db.execute("UPDATE episode SET success = ? WHERE id = ?", (success_of(episode), id))
                    self._add_components(episode)
        if scored:
            self._db.execute("DELETE FROM mark")
            self._db.execute("INSERT INTO mark VALUES (?, ?)", scored[-1][1:])


def components_of(episode: Episode) -> dict[str, float | None]:
    """Returns the reward components of an episode: of the outcome, and the sums of those of turns."""
    found: dict[str, float | None] = {}
    for turn in episode.own_turns:
        for name, value in turn.rewards.items():
            if value is not None:
                found[name] = (found.get(name) or 0.0) + value
            else:
                found.setdefault(name, None)
    return found | episode.components


def passages(episode: Episode) -> Iterator[Passage]:
    """Yields the texts of an episode that are searched."""
    opening = episode.prompt or episode.task.instruction
    yield Passage(None, "prompt", "\n".join(_text(message) for message in opening))
    for context in episode.contexts.values():
        yield Passage(None, "prompt", "\n".join(map(_text, context.prompt)))
    for turn in episode.turns:
        yield from _of_turn(turn)
    if episode.answer:
        yield Passage(None, "answer", episode.answer)
    for name, note in episode.notes.items():
        yield Passage(None, "note", f"{name}: {note}")
    if episode.error is not None:
        yield Passage(None, "error", f"{episode.error.line}\n{episode.error.traceback}")


def _of_turn(turn: Turn) -> Iterator[Passage]:
    yield Passage(turn.index, "text", turn.text)
    for call in turn.calls:
        if call.outcome != "malformed":  # its arguments are those of the text
            yield Passage(turn.index, "call", f"{call.name} {' '.join(_leaves(call.arguments))}")
        yield Passage(turn.index, "result", f"{call.result}\n{call.raised}" if call.raised else call.result)
    shown = {call.result for call in turn.calls}
    for message in turn.observations:
        if (text := _text(message)) not in shown:
            yield Passage(turn.index, "observation", text)


def _text(message: dict[str, Any]) -> str:
    return text_of(message.get("content") or "")


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        yield str(value)
        return
    for each in value:
        yield from _leaves(each)


def words_of(query: str) -> list[tuple[str, bool]]:
    """Returns the words and phrases of a query, each with whether it may go on (`word*`)."""
    found = []
    for phrase, word in re.findall(r'"([^"]*)"?|([^\s"]+)', query):
        text = phrase or word
        if any(char.isalnum() for char in text):
            found.append((text.rstrip("*"), bool(word) and word.endswith("*")))
    return found


def match(query: str) -> str:
    """Returns a query in the language of SQLite, in which nothing that was typed is syntax; "": it holds no word."""
    return " ".join(f'"{_plain(text)}"{"*" if goes_on else ""}' for text, goes_on in words_of(query))


def snippet(texts: Sequence[Passage], query: str, around: int = 80) -> tuple[str, list[tuple[str, bool]]]:
    """Returns where the words of a query are in a turn, and the text around them in pieces, each with whether it was
    asked for."""
    asked = [re.escape(text) + (r"\w*" if goes_on else "") for text, goes_on in words_of(query)]
    pattern = re.compile("|".join(rf"(?<!\w){text}(?!\w)" for text in asked) or "$^", re.IGNORECASE)
    best = max(
        texts, key=lambda passage: len({hit.lower() for hit in pattern.findall(passage.text[:_LONGEST])}), default=None
    )
    if best is None:
        return "text", []
    first = pattern.search(best.text)
    start = max(0, (first.start() if first else 0) - around)
    shown = best.text[start : start + 4 * around]
    pieces: list[tuple[str, bool]] = [("... ", False)] if start else []
    at = 0
    for hit in pattern.finditer(shown):
        pieces += [(shown[at : hit.start()], False), (hit[0], True)]
        at = hit.end()
    pieces.append((shown[at:], False))
    return best.where, [piece for piece in pieces if piece[0]]


def _plain(text: str) -> str:
    """A text that SQLite takes: without quotes' meaning in queries, and without lone surrogates."""
    return text.replace('"', " ").replace("\0", " ").encode("utf-8", "replace").decode()


def _opened(path: Path) -> sqlite3.Connection:
    for _ in range(2):
        db = sqlite3.connect(path, check_same_thread=False, timeout=30)
        with contextlib.suppress(sqlite3.DatabaseError):
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = OFF")  # it can be built again
            found = db.execute("PRAGMA user_version").fetchone()[0]
            if found == 0 and not db.execute("SELECT 1 FROM sqlite_master").fetchone():
                db.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_FORMAT}; COMMIT;")
                found = _FORMAT
            if found == _FORMAT:
                os.utime(path)
                return db
        db.close()
        _delete(path)
    raise sqlite3.DatabaseError("the file cannot be made anew")


def _delete_unused(cache: Path) -> None:
    for path in cache.glob("*.sqlite"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _UNUSED_S:
                _delete(path)


def _delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
