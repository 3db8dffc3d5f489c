"""What a query may do is what is allowed: functions, statements and virtual tables that are not listed are refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.sql.opening import open_database
from agentrl.sql.query import Database, QueryFailed, QueryLimits
from agentrl.sql.sqlite import _FUNCTIONS

SEARCHED = """
CREATE VIRTUAL TABLE note USING fts5(title, body);
INSERT INTO note VALUES ('tea', 'green tea and black tea'), ('pot', 'an iron pot');
CREATE VIRTUAL TABLE old USING fts4(body);
INSERT INTO old VALUES ('green tea'), ('an iron pot');
CREATE VIRTUAL TABLE area USING rtree(id, x0, x1);
INSERT INTO area VALUES (1, 0.0, 1.0), (2, 5.0, 6.0);
CREATE TABLE item (id INTEGER, tags TEXT);
INSERT INTO item VALUES (1, '["a", "b"]'), (2, '[]');
CREATE VIEW tagged AS SELECT item.id, value FROM item, json_each(tags);
"""
TOKENIZER = [
    "SELECT fts3_tokenizer('simple', x'4141414141414141')", "SELECT fts3_tokenizer('simple')",
    "SELECT hex(FTS3_Tokenizer('porter'))", "SELECT 1 FROM item WHERE \"fts3_tokenizer\"('simple') IS NOT NULL",
    "SELECT 1 FROM item ORDER BY fts3_tokenizer('simple', zeroblob(8))",
    "WITH a AS (SELECT fts3_tokenizer('simple') AS p) SELECT hex(p) FROM a",
    "SELECT max(fts3_tokenizer('simple')) OVER () FROM item",
    "SELECT * FROM json_each(json_array(hex(fts3_tokenizer('simple'))))",
]  # fmt: skip
OUTSIDE = [
    "SELECT random()", "SELECT randomblob(8)", "SELECT CURRENT_TIMESTAMP", "SELECT load_extension('/tmp/x.so')",
    "SELECT sqlite_compileoption_get(1)", "SELECT sqlite_source_id()", "SELECT sqlite_log(1, 'x')",
    "SELECT fts5(x'00')", "SELECT rtreecheck('area')", "SELECT optimize(old) FROM old", "SELECT fts5_source_id()",
    "SELECT * FROM dbstat", "SELECT * FROM sqlite_stmt", "SELECT * FROM fts3tokenize", "SELECT * FROM sqlite_dbpage",
    "SELECT * FROM pragma_function_list", "SELECT * FROM pragma_database_list", "SELECT * FROM bytecode('SELECT 1')",
    "PRAGMA database_list", "PRAGMA trusted_schema = 1", "PRAGMA query_only = 0", "PRAGMA hard_heap_limit = 1",
    "ATTACH ':memory:' AS x", "ATTACH 'file:/etc/passwd?mode=ro' AS x", "DETACH main",
    "BEGIN", "SAVEPOINT x", "ROLLBACK", "CREATE TEMP TABLE x (a)", "CREATE TEMP VIEW x AS SELECT 1",
    "CREATE VIRTUAL TABLE x USING fts5(a)", "CREATE VIRTUAL TABLE temp.x USING fts5vocab(main, note, row)",
    "UPDATE sqlite_master SET sql = 'x'", "DELETE FROM sqlite_master",
]  # fmt: skip
WRITES = [
    "DELETE FROM item", "INSERT INTO note VALUES ('a', 'b')", "INSERT INTO note (note) VALUES ('rebuild')",
    "UPDATE old SET body = 'x'", "DELETE FROM area", "DROP TABLE note", "DELETE FROM note_data", "REINDEX", "ANALYZE",
    "ALTER TABLE item RENAME TO thing", "EXPLAIN DELETE FROM item", "CREATE TABLE x AS SELECT 1",
    "WITH a AS (SELECT 1) INSERT INTO item SELECT 1, '' FROM a", "INSERT INTO item VALUES (1, '') RETURNING id",
]  # fmt: skip


@pytest.mark.parametrize("write", [False, True])
def test_sqlite_refuses_what_is_not_listed(write: bool) -> None:
    all_refused(open_database(SEARCHED, write=write), [*TOKENIZER, *OUTSIDE])


@pytest.mark.parametrize("file", [False, True])
def test_sqlite_that_is_read_stays_as_it_is(file: bool, tmp_path: Path) -> None:
    made(tmp_path / "notes.db")
    all_refused(open_database(str(tmp_path / "notes.db") if file else SEARCHED), WRITES, "can only be read|readonly")


def all_refused(database: Database, queries: Sequence[str], why: str | None = None) -> None:
    before = database.state()
    for query in queries:
        with pytest.raises(QueryFailed, match=why):
            pytest.fail(f"{query} gives {database.run(query, QueryLimits())}")
        assert database.state() == before, query


def made(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(SEARCHED)
    connection.close()


HONEST: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("SELECT title FROM note WHERE note MATCH 'tea'", [("tea",)]),
    ("SELECT highlight(note, 1, '[', ']') FROM note WHERE note MATCH 'pot' ORDER BY rank", [("an iron [pot]",)]),
    ("SELECT snippet(note, 1, '', '', '', 2) FROM note('iron')", [("an iron",)]),
    ("SELECT title FROM note WHERE note MATCH 'green OR iron' ORDER BY bm25(note)", [("pot",), ("tea",)]),
    ("SELECT body FROM old WHERE body MATCH 'tea'", [("green tea",)]),
    ("SELECT snippet(old), offsets(old) FROM old WHERE old MATCH 'iron'", [("an <b>iron</b> pot", "0 0 3 4")]),
    ("SELECT id FROM area WHERE x0 >= 5", [(2,)]),
    ("SELECT value FROM item, json_each(tags)", [("a",), ("b",)]),
    ("SELECT id, value FROM tagged", [(1, "a"), (1, "b")]),
    ("SELECT name FROM pragma_table_info('item')", [("id",), ("tags",)]),
    ("SELECT strftime('%Y', '2024-02-03'), printf('%05.1f', 2), iif(1, 2, 3)", [("2024", "002.0", 2)]),
    ("SELECT count(*) FILTER (WHERE id > 1), group_concat(id) FROM item", [(1, "1,2")]),
    ("SELECT row_number() OVER (ORDER BY id), lag(id) OVER (ORDER BY id) FROM item", [(1, None), (2, 1)]),
]


@pytest.mark.parametrize("opens", ["a script", "a file", "a copy"])
def test_honest_queries_work(opens: str, tmp_path: Path) -> None:
    made(tmp_path / "notes.db")
    where = SEARCHED if opens == "a script" else str(tmp_path / "notes.db")
    database = open_database(where, write=opens == "a copy")
    for query, rows in HONEST:
        assert database.run(query, QueryLimits()).rows == rows, query
        assert database.run(query, QueryLimits()).rows == rows, "again"


def test_what_may_be_written_can_be() -> None:
    database = open_database(SEARCHED, write=True)
    for query in (
        "INSERT INTO note VALUES ('cup', 'a tea cup')", "DELETE FROM old WHERE body MATCH 'iron'",
        "INSERT INTO note (note) VALUES ('optimize')", "UPDATE area SET x0 = -1 WHERE id = 1",
        "ALTER TABLE item RENAME TO thing", "ALTER TABLE thing RENAME COLUMN tags TO labels",
        "ALTER TABLE thing ADD COLUMN price REAL", "ALTER TABLE thing DROP COLUMN price",
        "CREATE INDEX by_id ON thing (id)", "CREATE TABLE x AS SELECT id FROM thing", "ANALYZE",
        "CREATE TRIGGER t AFTER INSERT ON x BEGIN DELETE FROM thing; END", "INSERT INTO x VALUES (7)",
        "DROP TABLE note", "DROP VIEW tagged", "REPLACE INTO x VALUES (8)",
    ):  # fmt: skip
        database.run(query, QueryLimits())
    assert database.run("SELECT COUNT(*) FROM thing", QueryLimits()).rows == [(0,)]
    assert database.run("SELECT body FROM old", QueryLimits()).rows == [("green tea",)]
    database.run("CREATE TRIGGER u AFTER INSERT ON x BEGIN DELETE FROM x WHERE random() > 0; END", QueryLimits())
    with pytest.raises(QueryFailed, match="not authorized"):  # also where a trigger calls it
        database.run("INSERT INTO x VALUES (9)", QueryLimits())


def test_every_function_of_this_sqlite_is_listed_or_known_to_be_refused() -> None:
    here = {name for (name,) in sqlite3.connect(":memory:").execute("SELECT name FROM pragma_function_list")}
    refused = {
        "random", "randomblob", "current_date", "current_time", "current_timestamp",  # another run sees others
        "load_extension", "fts3_tokenizer", "fts5", "optimize", "sqlite_log", "rtreecheck", "rtreedepth", "rtreenode",
        "sqlite_compileoption_get", "sqlite_compileoption_used", "sqlite_source_id", "fts5_source_id", "sqlite_offset",
        "fts5_locale", "fts5_get_locale", "fts5_insttoken",
    }  # fmt: skip
    assert here - _FUNCTIONS <= refused


# -- DuckDB

SHOP = """
CREATE TABLE item (id INTEGER, name VARCHAR); INSERT INTO item VALUES (1, 'tea'), (2, 'pot');
"""


@pytest.fixture(params=["a script", "a file"], scope="module")
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    duckdb = pytest.importorskip("duckdb", reason="pip install 'agentrl-framework[duckdb]'")
    where = SHOP
    if request.param == "a file":
        where = str(tmp_path_factory.mktemp("shop") / "shop.duckdb")
        with duckdb.connect(where) as connection:
            connection.execute(SHOP)
    return open_database(where, engine="duckdb")


CHANGES = [
    "EXPLAIN ANALYZE DELETE FROM item", "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
    "explain (analyze) DROP TABLE item",
    "EXPLAIN (ANALYZE, FORMAT JSON) INSERT INTO item VALUES (3, 'x')", "EXPLAIN DELETE FROM item",
    "/* */ EXPLAIN ANALYZE DELETE FROM item", "EXPLAIN/**/ANALYZE DELETE FROM item",
    "EXPLAIN ANALYZE -- SELECT\nDELETE FROM item", "EXPLAIN EXPLAIN ANALYZE DELETE FROM item",
    "EXPLAIN ANALYZE TRUNCATE item", "PREPARE p AS DELETE FROM item", "EXECUTE p", "CREATE TEMP TABLE x (a INT)",
    "CREATE MACRO m() AS 1", "CREATE PERSISTENT SECRET s (TYPE s3)", "BEGIN TRANSACTION", "CHECKPOINT",
    "INSERT INTO item VALUES (3, 'x') RETURNING id", "SET threads = 4", "RESET threads", "USE memory",
    "WITH gone AS (DELETE FROM item RETURNING id) SELECT * FROM gone", "EXPORT DATABASE '/tmp/x'",
    "CALL pragma_version()",
]  # fmt: skip


def test_duckdb_that_is_read_stays_as_it_is(shop: Any) -> None:
    all_refused(shop, CHANGES)


UNSTEADY = [
    "random()", "uuid()", "gen_random_uuid()", "now()", "today()", "current_date", "current_timestamp", "localtime",
    '"random"()', "random /* a comment */ ()", "nextval('s')", "setseed(0.5)", "sleep_ms(1)", "pg_sleep(1)",
    "ago(INTERVAL 1 DAY)", "current_setting('threads')", "getvariable('x')", "main.random()", "current_query()",
    "list_transform([1], x -> random())", "txid_current()", "write_log('x')",
]  # fmt: skip


def test_duckdb_refuses_functions_that_give_other_values_each_time(shop: Any) -> None:
    asked = ("SELECT {} AS a", "SELECT 1 AS a FROM item WHERE ({}) IS NOT NULL", "EXPLAIN SELECT {}")
    all_refused(shop, [query.format(call) for call in UNSTEADY for query in asked], r"takes no \w+\(\)")


TABLES = [
    "query('DELETE FROM item')", "query_table('item')", "read_csv('/etc/passwd')", "read_text('/etc/passwd')",
    "glob('/*')", "duckdb_settings()", "duckdb_secrets()", "duckdb_extensions()", "pandas_scan(1)",
    "arrow_scan(1, 2, 3)", "seq_scan('item')", "json_execute_serialized_sql('{}')", "sniff_csv('/etc/passwd')",
    "duckdb_logs()", "parquet_scan('/tmp/x')", "test_all_types()", "'/etc/passwd'", "of_this_process",
]  # fmt: skip


def test_duckdb_refuses_tables_that_are_not_listed(shop: Any) -> None:
    of_this_process = pytest.importorskip("numpy").arange(3)  # a variable that a query could name
    all_refused(shop, [f"SELECT * FROM {table}" for table in TABLES])
    assert len(of_this_process) == 3


SHOWN: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("SELECT upper(name) FROM item ORDER BY id", [("TEA",), ("POT",)]), ("FROM item SELECT count(*)", [(2,)]),
    ("SELECT range FROM range(2)", [(0,), (1,)]), ("SELECT unnest([1, 2]) AS i", [(1,), (2,)]),
    ("SELECT histogram(id)::VARCHAR FROM item", [("{1=1, 2=1}",)]), ("SHOW TABLES", [("item",)]),
    ("SELECT year(DATE '2024-02-03'), last_day(DATE '2024-02-03')::VARCHAR", [(2024, "2024-02-29")]),
    ("WITH a(n) AS (SELECT 1) SELECT n FROM a", [(1,)]), ("SELECT 'random()', $$ now() $$", [("random()", " now() ")]),
    ("SELECT now FROM (SELECT 1 AS now)", [(1,)]), ("SELECT name.upper() FROM item WHERE id = 1", [("TEA",)]),
    ("SELECT row_number() OVER (ORDER BY id) FROM item", [(1,), (2,)]), ("SELECT 1 -- random()", [(1,)]),
    ("SELECT json_extract_string('{\"a\": 1}', '$.a'), regexp_replace('a1', '[0-9]', '')", [("1", "a")]),
    ("SELECT table_name FROM duckdb_tables()", [("item",)]), ("SELECT id FROM item WHERE id IN (1, 3)", [(1,)]),
]  # fmt: skip


def test_honest_queries_work_in_duckdb(shop: Any) -> None:
    for query, rows in SHOWN:
        assert shop.run(query, QueryLimits()).rows == rows, query


def test_duckdb_explains_what_it_reads(shop: Any) -> None:
    for query in ("EXPLAIN SELECT * FROM item", "EXPLAIN ANALYZE SELECT * FROM item", "explain (analyze) FROM item"):
        assert shop.run(query, QueryLimits()).rows
