"""SQL that writes where it may only read, reaches what is no table, or never ends."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.tools.builtin.sql import Sql
from agentrl.types.errors import ToolError
from agentrl.types.task import Task
from tests.attacks.cases import DRIVER, Broken, Case, Family
from tests.sql.test_in_a_helper import EVIL
from tests.sql.test_rights import CHANGES, OUTSIDE, TABLES, TOKENIZER, UNSTEADY, WRITES
from tests.sql.test_sql import SHOP

_ROWS = "SELECT * FROM item LEFT JOIN sale ON item_id = id ORDER BY id, day"
_MOST_SHOWN = 8000  # characters, where `chars` is 4,000
_LISTED = {
    "sqlite": [*TOKENIZER, *OUTSIDE, *WRITES, *EVIL["sqlite"]],
    "duckdb": [
        *CHANGES,
        *(f"SELECT {call}" for call in UNSTEADY),
        *(f"SELECT * FROM {table}" for table in TABLES),
        *EVIL["duckdb"],
    ],
}
"""By engine. They may fail for another reason than the one that they are listed for: their tables may not be here."""
_VALUES = (
    "1", "-1", "NULL", "'x'", "''", "id", "name", "price", "*", "9223372036854775807", "1e308", "x'00'",
    "zeroblob(999999)", "'%' || name",
    "hex(zeroblob(400000))", "(SELECT 1)", "(SELECT name FROM item)", "CAST(name AS BLOB)", "?", ":a", "$1", "[1, 2]",
    "{'a': 1}", "repeat('x', 99999)",
)  # fmt: skip
_FUNCTIONS = (
    "abs", "count", "sum", "group_concat", "hex", "instr", "length", "lower", "max", "printf", "quote", "random",
    "randomblob", "replace", "round",
    "substr", "trim", "unicode", "zeroblob", "load_extension", "fts3_tokenizer", "readfile", "writefile", "edit",
    "sqlite_version", "json", "json_each",
    "json_group_array", "glob", "like", "regexp", "date", "strftime", "randomblob", "total_changes", "changes",
    "last_insert_rowid", "eval", "uuid", "now",
    "current_setting", "getenv", "read_text", "read_csv", "list_transform", "unnest", "range", "generate_series",
    "regexp_replace", "list", "struct_pack",
)  # fmt: skip
_TABLES = (
    "item", "sale", "main.item", "temp.item", "sqlite_master", "sqlite_schema", "sqlite_temp_master",
    "pragma_table_info('item')", "dbstat",
    "json_each('[1]')", "json_tree('{}')", "generate_series(1, 9)", "range(9)", "'/etc/passwd'",
    "read_csv('/etc/passwd')", "glob('/*')",
    "information_schema.tables", "duckdb_settings()", "pragma_database_list", "(VALUES (1))", "(SELECT * FROM item)",
    "item AS a, item AS b, item AS c",
    "item JOIN sale ON 1", "pg_catalog.pg_settings", "fts3tokenize", "sqlite_stmt", "sqlite_dbpage",
)  # fmt: skip
_STATEMENTS = (
    "SELECT {v} FROM {t}", "SELECT {f} FROM {t} WHERE {f} = {v}",
    "SELECT {v}, {f} FROM {t} GROUP BY 1 HAVING {f} ORDER BY {v} LIMIT {v}",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {f} FROM n, {t}",
    "SELECT {f} OVER (ORDER BY {v}) FROM {t}",
    "INSERT INTO item VALUES ({v}, {v}, {v})", "UPDATE item SET name = {v} WHERE {f}", "DELETE FROM {t} WHERE {v}",
    "REPLACE INTO item SELECT {v}, {v}, {v}",
    "CREATE TABLE x{n} AS SELECT {v} FROM {t}", "CREATE TEMP VIEW x{n} AS SELECT {f}",
    "CREATE TRIGGER x{n} AFTER INSERT ON item BEGIN SELECT {f}; END",
    "DROP TABLE {t}", "ALTER TABLE item ADD COLUMN x{n} DEFAULT {v}", "ATTACH {v} AS x{n}", "DETACH main",
    "PRAGMA {p} = {v}", "PRAGMA {p}({v})", "VACUUM INTO {v}",
    "VACUUM", "COPY item TO '{file}'", "COPY item FROM '/etc/passwd'", "EXPORT DATABASE '{file}'",
    "ATTACH '{file}' AS x{n}", "INSTALL httpfs", "LOAD '{file}'",
    "SET {p} = {v}", "EXPLAIN {s}", "EXPLAIN ANALYZE {s}", "{s}; {s}", "{s} UNION ALL {s}", "SELECT * FROM ({s})",
    "BEGIN", "COMMIT", "ROLLBACK", "REINDEX",
    "/* {s} */ {s}", "-- {s}\n{s}", "PREPARE x AS {s}", "CALL pragma_version()", "SELECT {v} WHERE EXISTS ({s})",
    "FROM {t} SELECT {v}", "VALUES ({v}, {f})",
    "DESCRIBE {t}", "PIVOT {t} ON name USING {f}", "SUMMARIZE {t}", "SHOW {t}", "ANALYZE", "CHECKPOINT",
    "WITH x AS ({s}) SELECT * FROM x", "MERGE INTO item USING {t} ON 1",
)  # fmt: skip
_PRAGMAS = (
    "writable_schema", "journal_mode", "query_only", "trusted_schema", "temp_store_directory", "mmap_size",
    "page_size", "user_version", "database_list",
    "table_info", "hard_heap_limit", "key", "threads", "memory_limit", "enable_external_access",
    "allow_unsigned_extensions", "temp_directory", "home_directory",
)  # fmt: skip


def query(rng: random.Random, depth: int = 2) -> str:
    """A statement of one engine or the other, sensible or not."""
    said = rng.choice(_STATEMENTS if depth else _STATEMENTS[:5])
    while "{" in said and len(said) < 20_000:
        head, _, rest = said.partition("{")
        word, closed, tail = rest.partition("}")
        draw = _DRAWS.get(word)
        if draw is None or not closed:
            break
        said = head + draw(rng, depth).replace("{", "(").replace("}", ")") + tail
    at = rng.randrange(len(said) + 1)
    return (
        said
        if rng.random() < 0.8
        else said[:at] + rng.choice(("'", '"', ")", ";", "\0", "--", "/*", "\ud800", "é", "$$")) + said[at:]
    )


_DRAWS: dict[str, Any] = {
    "v": lambda rng, _: rng.choice(_VALUES),
    "t": lambda rng, _: rng.choice(_TABLES),
    "p": lambda rng, _: rng.choice(_PRAGMAS),
    "n": lambda rng, _: str(rng.randrange(9)),
    "f": lambda rng, _: f"{rng.choice(_FUNCTIONS)}({', '.join(rng.choice(_VALUES) for _ in range(rng.randrange(4)))})",
    "s": lambda rng, depth: query(rng, max(depth - 1, 0)),
    "file": lambda rng, _: f"made-by-sql-{rng.randrange(9)}",
}


class Queries(Family):
    """Each query of a model, beside a neighbour's who asks the same database for its rows."""

    name = "queries"
    places = (DRIVER,)
    batch = 20

    def listed(self) -> Sequence[str]:
        return [f"{engine} {n}" for engine, queries in _LISTED.items() for n in range(len(queries))]

    def play(self, cases: Sequence[Case], folder: Path) -> Iterator[Broken]:
        """Runs them."""
        before = os.getcwd()
        os.chdir(folder)  # where a database would make the files that a query names
        try:
            yield from asyncio.run(_run(cases))
            if made := os.listdir("."):
                yield Broken(tuple(case.id for case in cases), f"files were made: {made}")
        finally:
            os.chdir(before)


def _of(case: Case) -> tuple[str, str, bool]:
    """Engine and query of a case, and whether it may write."""
    rng = case.random()
    if case.drawn:
        return rng.choice([*_LISTED]), query(rng), rng.random() < 0.3
    engine, _, number = case.name.partition(" ")
    return engine, _LISTED[engine][int(number)], False


async def _run(cases: Sequence[Case]) -> list[Broken]:
    found = []
    honest = {engine: await _opened(engine) for engine in _LISTED}
    rows = {engine: await _held(tool) for engine, tool in honest.items()}
    for case in cases:
        engine, asked, write = _of(case)
        tool = await _opened(engine, timeout_s=1.0, write=write)
        said, near = await asyncio.gather(_tried(tool.sql(asked)), _held(honest[engine]))
        if near != rows[engine]:
            found.append(Broken((case.id,), f"a neighbour's query found {near!r}"))
        if len(said) > _MOST_SHOWN:
            found.append(Broken((case.id,), f"{len(said)} characters are shown"))
        if not write and (held := await _held(tool)) != rows[engine]:
            found.append(Broken((case.id,), f"a database that is only read was changed: {held!r}"))
        await tool.close()
    await asyncio.gather(*(tool.close() for tool in honest.values()))
    return found


async def _opened(engine: str, **settings: Any) -> Sql:
    tool = Sql(engine=engine, **settings)  # type: ignore[arg-type]
    await tool.open(Task.of("t", "", database=SHOP), None)
    return tool


async def _held(tool: Sql) -> str:
    """What the tables hold, and which there are."""
    return f"{await _tried(tool.sql(_ROWS))}\n{await _tried(tool.schema())}"


async def _tried(asked: Awaitable[str]) -> str:
    try:
        return await asked
    except ToolError as error:
        return str(error)
