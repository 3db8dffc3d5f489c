"""What the helper process does for the `sql` tool, called in this process."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from agentrl.sql import process
from agentrl.sql.opening import open_database
from agentrl.sql.query import QueryFailed
from agentrl.sql.sqlite import Sqlite
from tests.sql.test_sql import SHOP

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture(autouse=True)
def databases(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The databases that are open, none of them from another test."""
    opened: OrderedDict[Any, Any] = OrderedDict()
    monkeypatch.setattr(process, "_databases", opened)
    yield opened
    for database in opened.values():
        database.close()


@pytest.fixture(params=["sqlite", "duckdb"])
def engine(request: pytest.FixtureRequest) -> Any:
    if request.param == "duckdb":
        pytest.importorskip("duckdb", reason="pip install 'agentrl-framework[duckdb]'")
    return request.param


def shown(query: str, where: str = SHOP, engine: Any = None, copy: str | None = None, **limits: Any) -> dict[str, Any]:
    return process.shown(where, engine, copy, query, **{"rows": 10, "chars": 500, "seconds": 5.0, **limits})


def test_a_result_is_text_of_bounded_size(engine: Any) -> None:
    assert process.opened(SHOP, engine, None) == {"state": ""}
    two = shown("SELECT id, name FROM item ORDER BY id", engine=engine, rows=2)
    assert two == {"text": "id | name\n1 | tea\n2 | pot\n(the first 2 rows)", "changed": False}
    assert shown("SELECT name FROM item WHERE id = 3", engine=engine)["text"] == "name\nNULL\n(1 row)"
    assert shown("SELECT name FROM item ORDER BY id", engine=engine, chars=8)["text"] == (
        "name\ntea\n[... 9 more characters]\n(3 rows)"
    )
    word = "x" * 1000
    assert shown(f"SELECT '{word}' AS a", engine=engine)["text"] == f"a\n{word[:200]}...\n(1 row)"


def test_bytes_and_line_breaks_take_one_line() -> None:
    assert shown("SELECT x'00ff' AS a, 'b\n c' AS d")["text"] == "a | d\nx'00ff' | b c\n(1 row)"


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("DELETE FROM item", "can only be read"), ("SELECT nothing FROM item", "nothing"), (" ;", "the query is empty"),
        (ENDLESS, "the query took longer than 0.05 s"), ("SELECT '\ud800'", "what is no character"),
    ],
)  # fmt: skip
def test_a_query_that_fails_says_why(engine: Any, query: str, why: str) -> None:
    found = shown(query, engine=engine, seconds=0.05)
    assert "text" not in found
    assert why in found["failed"]


def test_a_database_that_cannot_be_opened_says_why(tmp_path: Path, engine: Any) -> None:
    (broken := tmp_path / "broken.db").write_text("no database")
    assert str(broken) in process.opened(str(broken), engine, None)["wrong"]
    gone = process.opened(str(tmp_path / "gone.db"), engine, None)
    assert "there is no database" in gone["wrong"]
    assert gone["remedy"]
    assert "there is no database" in shown("SELECT 1", str(tmp_path / "gone.db"), engine)["failed"]


def test_a_duckdb_query_is_one_statement_and_its_columns_are_plain(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install 'agentrl-framework[duckdb]'")
    assert shown("SELECT 1; SELECT 2", engine="duckdb")["failed"] == "one statement at a time, not 2"
    assert "cast it to VARCHAR, or unnest it" in shown("SELECT [1] AS a", engine="duckdb")["failed"]
    (tmp_path / "shop.sql").write_text(SHOP.strip())
    assert shown("SELECT 1 AS a", str(tmp_path / "shop.sql"), "duckdb")["text"] == "a\n1\n(1 row)"
    refused = process.opened(str(tmp_path / "shop.duckdb"), None, str(tmp_path / "copy"))
    assert "there is no database" in refused["wrong"]
    (tmp_path / "shop.duckdb").touch()
    refused = process.opened(str(tmp_path / "shop.duckdb"), None, str(tmp_path / "copy"))
    assert refused == {"wrong": "a DuckDB file can only be read", "remedy": "give the script that makes it"}


def test_what_a_query_reads_is_listed() -> None:
    database = open_database(SHOP)
    assert isinstance(database, Sqlite)
    found = database.reads("SELECT i.name FROM item AS i JOIN sale ON item_id = id")
    assert found == {"item", "item.name", "item.id", "sale", "sale.item_id"}
    with pytest.raises(QueryFailed, match="nothing"):
        database.reads("SELECT nothing FROM item")
    database.close()


def test_a_copy_is_written_and_its_state_follows(tmp_path: Path, engine: Any) -> None:
    copy = str(tmp_path / "copy")
    before = process.opened(SHOP, engine, copy)["state"]
    assert shown("SELECT 1 AS a", engine=engine, copy=copy)["changed"] is False
    found = shown("UPDATE item SET name = 'cup' WHERE id = 1", engine=engine, copy=copy)
    assert found["changed"] is True
    assert "cup" in shown("SELECT name FROM item", engine=engine, copy=copy)["text"]
    assert process.state(SHOP, engine, copy) != before
    assert set(process.described(SHOP, engine, copy)["text"]) == {"item", "sale"}
    assert shown("SELECT name FROM item WHERE id = 1", engine=engine)["text"].startswith("name\ntea")


def test_a_file_that_changed_is_opened_again(tmp_path: Path, databases: Any) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.executescript("CREATE TABLE a (b); INSERT INTO a VALUES (1);")
    for _ in range(2):
        assert shown("SELECT b FROM a", str(path))["text"] == "b\n1\n(1 row)"
        assert len(databases) == 1
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.executescript("CREATE TABLE a (b, c); INSERT INTO a VALUES (2, 3);")
    assert shown("SELECT b FROM a", str(path))["text"] == "b\n2\n(1 row)"


def test_only_the_latest_databases_stay_open(databases: Any) -> None:
    for k in range(6):
        script = f"CREATE TABLE t (a); INSERT INTO t VALUES ({k});"
        assert shown("SELECT a FROM t", script)["text"] == f"a\n{k}\n(1 row)"
    assert [where[0][-3] for where in databases] == ["2", "3", "4", "5"]
