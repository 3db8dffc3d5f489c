"""SQL answers: compared by what they return, or by what they consist of."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.verifiers import code_in, gold
from agentrl.rewards.helper import Helper, TooMuch
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError
from agentrl.types.task import Task

_STEPS = 50_000_000  # of SQLite's virtual machine; a bound that does not depend on the clock
_LONGEST = 32 << 20  # bytes of one value
_MOST = 256 << 20  # bytes of all values
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


@reward(source="execution accuracy, Spider test-suite evaluation (arXiv:2010.02840), one database")
async def sql_execution(
    task: Task,
    episode: Episode,
    *,
    key: str = "sql",
    database: str = "database",
    max_rows: int = 100_000,
    timeout_s: float = 30.0,
) -> Scored:
    """1 if the query returns what a gold query returns, else 0: rows as a multiset, in order if the gold one orders.

    The query runs in a helper process, on a database that it can only read; writing, attaching and pragmas are refused.
    A query is ended after 50 million steps, `timeout_s`, a value of 32 MiB, or 256 MiB of values.

    Args:
        key: where in `task.data` the gold query is, or a list of them.
        database: where in `task.data` the database is: the path of an SQLite file, or SQL that makes one.
        timeout_s: processor time for the query and the gold ones together.

    Raises:
        TaskError: no gold query or database, or a gold query that fails.
    """
    where = _database(task, database)
    queries, answer = gold(task, key), code_in(episode.answer or "").strip()
    try:
        gold_error, same, note = await _HELPER.ask(compare, where, queries, answer, max_rows, cpu_s=timeout_s)
    except TooMuch as problem:
        gold_error, same, note = "", False, str(problem)
        try:
            gold_error, *_ = await _HELPER.ask(compare, where, queries, "", max_rows, cpu_s=timeout_s)
        except TooMuch:
            gold_error = f"{problem}: {queries}"
    if gold_error:
        raise TaskError(gold_error, place=f"task {task.id}")
    return Scored(float(same), note)


@reward(source="partial match after Spider's component matching (arXiv:1809.08887), over the text of the clauses")
def sql_partial(task: Task, episode: Episode, *, key: str = "sql") -> float:
    """Mean F1 of the clauses (select, from, where, group by, having, order by, limit) of the two queries.

    A clause counts if one of the queries has it; its items (at commas, `and`, `or` outside brackets) are compared as a
    bag, without case and space. For the best of several gold queries. It looks at text: equal queries that are written
    differently get less than 1.

    This is neither PaVeRL-SQL's partial match, which compares what queries return, nor one of Reasoning-SQL's rewards
    (schema linking, n-grams, syntax, a judge).
    """
    said = _clauses(code_in(episode.answer or ""))
    return max(_clause_f1(said, _clauses(query)) for query in gold(task, key))


def _database(task: Task, key: str) -> str:
    where = task.data.get(key)
    if not isinstance(where, str) or not where.strip():
        raise TaskError(
            f"no database: {key!r} is {where!r}", place=f"task {task.id}", remedy="a file's path, or SQL that makes it"
        )
    if ";" in where or "\n" in where:
        return where
    if not Path(where).is_file():
        raise TaskError(f"there is no database {where!r}", place=f"task {task.id}")
    return str(Path(where).resolve())


_HELPER = Helper("agentrl.rewards.functions.sql", memory_mb=3072)


# In the helper


def compare(where: str, queries: list[str], answer: str, max_rows: int) -> tuple[str, bool, str]:
    """Why a gold query fails (or nothing), whether the answer returns what one of them does, and why not."""
    with closing(_open(where)) as connection:
        references = []
        for query in queries:
            try:
                references.append((_rows(connection, query, max_rows), " order by " in f" {query.lower()} "))
            except (sqlite3.Error, ValueError) as error:
                return f"the gold query fails: {error}: {query}", False, ""
        if not answer:
            return "", False, "no answer"
        try:
            found = _rows(connection, answer, max_rows)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            return "", False, str(error)
        same = any(found == rows if ordered else Counter(found) == Counter(rows) for rows, ordered in references)
        return "", same, "" if same else f"{len(found)} rows, not those of the gold query"


def _open(where: str) -> sqlite3.Connection:
    # Autocommit (None): no transaction of Python's own, which the authoriser would refuse.
    if ";" in where or "\n" in where:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.executescript(where)
    else:
        connection = sqlite3.connect(f"{Path(where).as_uri()}?mode=ro", uri=True, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY)
    return connection


def _rows(connection: sqlite3.Connection, query: str, max_rows: int) -> list[tuple[Any, ...]]:
    left = [_STEPS // 10_000]

    def tick() -> int:
        left[0] -= 1
        return int(left[0] < 0)

    connection.set_progress_handler(tick, 10_000)
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in connection.execute(query.rstrip().rstrip(";")):
        rows.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(rows) > max_rows:
            raise ValueError(f"more than {max_rows} rows")
        if size > _MOST:
            raise ValueError(f"more than {_MOST >> 20} MiB of values")
    return rows


_CLAUSE = re.compile(r"\b(select|from|where|group by|having|order by|limit)\b")


def _clauses(query: str) -> dict[str, Counter[str]]:
    """By clause the bag of its items; what is in brackets stays with its item."""
    text = " ".join(query.lower().rstrip("; \n").split())
    depth, flat = 0, []
    for character in text:  # brackets are hidden from the search for clauses and separators
        depth -= character == ")"
        flat.append("\x00" if depth > 0 else character)
        depth += character == "("
    plain = "".join(flat)
    found: dict[str, Counter[str]] = {}
    marks = [*_CLAUSE.finditer(plain)]
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    for mark, end in zip(marks, ends, strict=False):
        cuts = [mark.end()]
        for separator in re.finditer(r",|\b(?:and|or)\b", plain[mark.end() : end]):
            cuts += [mark.end() + separator.start(), mark.end() + separator.end()]
        pairs = zip(cuts[::2], [*cuts[1::2], end], strict=True)
        items = [re.sub(r"\s+", "", text[first:last]) for first, last in pairs]
        found.setdefault(mark[1], Counter()).update(item for item in items if item)
    return found


def _clause_f1(said: dict[str, Counter[str]], wanted: dict[str, Counter[str]]) -> float:
    names = said.keys() | wanted.keys()
    scores = []
    for name in names:
        a, b = said.get(name, Counter()), wanted.get(name, Counter())
        scores.append(2 * (a & b).total() / (a.total() + b.total()) if a or b else 0.0)
    return sum(scores) / len(scores) if scores else 0.0
