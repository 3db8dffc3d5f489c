"""Questions about the databases of Spider's dev set: some of Spider's own, and more from templates over the schemas."""

from __future__ import annotations

import itertools
import random
import re
import sqlite3
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from agentrl import Message, Say, Task
from agentrl.registry.references import load_object

HERE = Path(__file__).parent
databases = load_object("./spider.py:databases", HERE)
pairs = load_object("./spider.py:pairs", HERE)
tables = load_object("./spider.py:tables", HERE)

Pair = tuple[str, str, str]
"""An id, a question, and its query."""


def questions(n: int = 512, seed: int = 0, held_out: bool = False, own: bool = False) -> Iterator[Task]:
    """The first `n` questions, every database in turn. A smaller `n` gives the beginning of the same list.

    Args:
        seed: shuffles the questions of each database. The id of a question does not depend on it.
        held_out: the databases that are for evaluation (one in five, by a hash of the name), not the rest.
        own: only the questions of Spider itself.
    """
    pools = []
    for name, (path, other) in databases().items():
        if (zlib.crc32(name.encode()) % 5 == 0) == held_out:
            pools.append(_tasks(name, path, other, seed, own))
    dealt = (task for row in itertools.zip_longest(*pools) for task in row if task is not None)
    yield from itertools.islice(dealt, n)


def _tasks(name: str, path: str, other: str, seed: int, own: bool) -> Iterator[Task]:
    """The questions about a database, those of Spider first."""
    with closing(_open(path)) as one, closing(_open(other)) as two:
        shown = "\n".join(f"{table}({', '.join(columns)})" for table, columns in tables(one).items())
        found = [(f"spider-{k}", row["query"], row["gold"]) for k, row in enumerate(pairs()) if row["db"] == name]
        more = [] if own else sorted(_made(one))
        random.Random(f"{seed} {name}").shuffle(more)
        for key, question, sql in [*found, *more]:
            if _tells(one, two, sql):
                yield Task.of(
                    f"{name}/{key}",
                    f"The database has these tables:\n{shown}\n\n{question}",
                    sql=sql,
                    database=path,
                    databases=[path, other],
                )


def _made(shop: sqlite3.Connection) -> Iterator[Pair]:
    """Questions from templates: counts, sums, groups and orders over one table."""
    for table, columns in tables(shop).items():
        yield f"{table}/count", f"How many rows has the table {table}?", f'SELECT COUNT(*) FROM "{table}"'
        kinds = {column: _values(shop, table, column) for column in columns}
        numbers = [c for c, values in kinds.items() if values and all(isinstance(v, int | float) for v in values)]
        texts = [c for c, values in kinds.items() if 1 < len(values) < 60 and all(isinstance(v, str) for v in values)]
        for column in numbers[1:]:
            for word, function in (("largest", "MAX"), ("smallest", "MIN"), ("average", "AVG")):
                text = f"What is the {word} {column} in the table {table}?"
                yield f"{table}/{column}/{function.lower()}", text, f'SELECT {function}("{column}") FROM "{table}"'
        for column in texts:
            for value in kinds[column][:8]:
                where = f'FROM "{table}" WHERE "{column}" = {_quoted(value)}'
                text = f"How many rows of the table {table} have the {column} {value!r}?"
                yield f"{table}/{column}/{_slug(value)}", text, f"SELECT COUNT(*) {where}"
                for number in numbers[1:3]:
                    text = f"What is the average {number} of the rows of the table {table} with the {column} {value!r}?"
                    yield f"{table}/{column}/{_slug(value)}/{number}", text, f'SELECT AVG("{number}") {where}'
            text = f"Which values of {column} occur more than once in the table {table}?"
            group = f'FROM "{table}" GROUP BY "{column}"'
            yield f"{table}/{column}/twice", text, f'SELECT "{column}" {group} HAVING COUNT(*) > 1'
            text = f"For each {column} in the table {table}: give it and the number of its rows."
            yield f"{table}/{column}/each", text, f'SELECT "{column}", COUNT(*) {group}'


def _values(shop: sqlite3.Connection, table: str, column: str) -> list[Any]:
    listed = f'SELECT DISTINCT "{column}" FROM "{table}" WHERE "{column}" IS NOT NULL ORDER BY 1'
    return [value for (value,) in shop.execute(listed)]


def _tells(one: sqlite3.Connection, two: sqlite3.Connection, sql: str) -> bool:
    """Whether the query returns something, and something else from the other database."""
    rows = one.execute(sql).fetchall()
    return any(value is not None for row in rows for value in row) and rows != two.execute(sql).fetchall()


def _open(path: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _slug(text: str) -> str:
    return re.sub(r"\W+", "-", text.lower()).strip("-")


# --- scripts --------------------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Runs the query that answers the question, and gives it if the tool shows rows."""
    seen = yield Say(calls=[("sql", {"query": task.data["sql"]})])
    worked = not str(seen[-1]["content"]).startswith("Error")
    yield Say(calls=[("answer", {"text": task.data["sql"] if worked else "no query"})])


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Counts or lists any table, and gives that query."""
    text = str(task.instruction[-1]["content"])
    for _ in range(rng.randint(1, 3)):
        table, columns = rng.choice(re.findall(r"(?m)^(\w+)\((.*)\)$", text))
        query = f'SELECT {rng.choice(["COUNT(*)", *columns.split(", ")])} FROM "{table}"'
        yield Say(calls=[("sql", {"query": query})])
    yield Say(calls=[("answer", {"text": query})])


def empty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Says nothing."""
    yield Say()


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Sends what is no query, and answers with one that returns nothing."""
    yield Say(calls=[("sql", {"query": rng.choice(["", "drop table x", "SELECT", "yes"])})])
    yield Say(calls=[("answer", {"text": rng.choice(["SELECT 1 WHERE 0", "SELECT NULL", "yes", "SELECT 0"])})])
