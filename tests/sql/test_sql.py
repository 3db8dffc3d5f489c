"""Databases and the `sql` tool: what a model may do to them, what it is shown, and what ends a query."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.rewards.components import RewardSet
from agentrl.sql.opening import open_database
from agentrl.sql.query import QueryFailed, QueryLimits, Result
from agentrl.tools.builtin.sql import Sql
from agentrl.types.errors import MissingExtra, RecipeError, TaskError, ToolError
from agentrl.types.task import Task

SHOP = """
CREATE TABLE item (id INTEGER PRIMARY KEY, name VARCHAR, price DOUBLE);
INSERT INTO item VALUES (1, 'tea', 2.5), (2, 'pot', 12.0), (3, NULL, 0.5);
CREATE TABLE sale (item_id INTEGER, day VARCHAR);
INSERT INTO sale VALUES (1, 'mon'), (1, 'tue'), (2, 'tue');
"""


@pytest.fixture(params=["sqlite", "duckdb"])
def engine(request: pytest.FixtureRequest) -> Any:
    if request.param == "duckdb":
        pytest.importorskip("duckdb", reason="pip install 'agentrl-framework[duckdb]'")
    return request.param


async def opened(engine: Any = None, where: str = SHOP, **settings: Any) -> Sql:
    made = Sql(engine=engine, **settings)
    await made.open(Task.of("t", "", database=where), None)
    return made


@pytest.mark.slow
async def test_what_is_shown(engine: Any) -> None:
    shop = await opened(engine, rows=2)
    assert (
        await shop.sql("SELECT name, price FROM item ORDER BY id")
        == "name | price\ntea | 2.5\npot | 12.0\n(the first 2 rows)"
    )
    assert await shop.sql("SELECT name FROM item WHERE id = 3;") == "name\nNULL\n(1 row)"
    assert await shop.sql("SELECT name FROM item WHERE id > 3") == "name\n(0 rows)"
    assert "CREATE TABLE item" in await shop.schema()
    assert "sale" in await shop.schema()
    assert "sale" not in await shop.schema("Item")
    with pytest.raises(ToolError, match="no table 'customer'; there are: item, sale"):
        await shop.schema("customer")
    await shop.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM item", "DROP TABLE item", "INSERT INTO item VALUES (4, 'x', 1)", "CREATE TABLE x (a INTEGER)",
        "ATTACH '/tmp/other.db' AS other", "SELECT 1; SELECT 2", "", "SELEC 1", "SELECT nothing FROM item",
        "SELECT '\0'", "SELECT '\ud800'", "PRAGMA writable_schema = 1", "VACUUM INTO '/tmp/copy.db'",
        "COPY item TO '/tmp/item.csv'", "SELECT * FROM read_csv('/etc/passwd')", "SELECT readfile('/etc/passwd')",
    ],
)  # fmt: skip
async def test_what_is_refused_is_an_observation(engine: Any, query: str) -> None:
    shop = await opened(engine)
    with pytest.raises(ToolError):
        await shop.sql(query)
    assert await shop.sql("SELECT COUNT(*) AS n FROM item") == "n\n3\n(1 row)"
    await shop.close()


@pytest.mark.slow
async def test_a_query_without_end_is_ended(engine: Any) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    database = open_database(SHOP, engine=engine)
    with pytest.raises(QueryFailed, match="longer than 0.3 s|million steps"):
        database.run(endless, QueryLimits(seconds=0.3))
    assert database.run("SELECT 1 AS one", QueryLimits()).rows == [(1,)]


@pytest.mark.slow
async def test_a_result_is_bounded(engine: Any) -> None:
    database = open_database(SHOP, engine=engine)
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n"
    assert database.run(many, QueryLimits(rows=10)).more
    with pytest.raises(QueryFailed, match="MiB"):
        database.run(many, QueryLimits(bytes=1000))
    shop = await opened(engine, chars=30)
    shown = await shop.sql("SELECT name, price FROM item ORDER BY id")
    assert "more characters]" in shown
    assert len(shown) < 80


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT range(60000000)", "Out of Memory"), ("SELECT range(100000000)", "Out of Memory"),
        ("SELECT range(id) AS ids FROM item", r"column 'ids' is of type BIGINT\[\]: cast it to VARCHAR, or unnest it"),
        ("SELECT {'a': id} AS row FROM item", "column 'row' is of type STRUCT"),
    ],
)  # fmt: skip
async def test_lists_of_duckdb_do_not_become_objects(query: str, why: str) -> None:
    pytest.importorskip("duckdb", reason="pip install 'agentrl-framework[duckdb]'")
    shop = await opened("duckdb")
    with pytest.raises(ToolError, match=why):
        await shop.sql(query)
    assert await shop.sql("SELECT range(id)::VARCHAR AS ids FROM item WHERE id = 2") == "ids\n[0, 1]\n(1 row)"
    assert await shop.sql("SELECT unnest(range(2)) AS i") == "i\n0\n1\n(2 rows)"
    await shop.close()


@pytest.mark.parametrize("settings", [{"engine": "duckdb"}, {"database": "./shop.duckdb"}])
def test_a_recipe_is_refused_without_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.duckdb").touch()
    with pytest.raises(MissingExtra, match=r"agentrl-framework\[duckdb\]"):
        Sql(**settings)  # type: ignore[arg-type]
    for name in ("sql_execution", "sql_partial", "sql_syntax"):
        with pytest.raises(MissingExtra, match=rf"rewards.{name}(.|\n)*agentrl-framework\[duckdb\]"):
            RewardSet.from_recipe({name: settings}, tmp_path)


@pytest.mark.slow
async def test_a_file_is_only_read(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / ("shop.duckdb" if engine == "duckdb" else "shop.db")
    if engine == "duckdb":
        import duckdb

        with duckdb.connect(str(path)) as connection:
            connection.execute(SHOP)
    else:
        with sqlite3.connect(path) as connection:
            connection.executescript(SHOP)
    before = path.read_bytes()
    shop = await opened(where=str(path))
    with pytest.raises(ToolError, match="can only be read"):
        await shop.sql("DELETE FROM item")
    assert await shop.sql("SELECT COUNT(*) AS n FROM item") == "n\n3\n(1 row)"
    await shop.close()
    assert path.read_bytes() == before


@pytest.mark.slow
async def test_writing_changes_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(SHOP)
    one, other = await opened(where=str(path), write=True), await opened(where=str(path), write=True)
    same = one.state_key()
    assert same == other.state_key()
    assert await one.sql("UPDATE item SET price = 3 WHERE id = 1") == "done"
    assert one.state_key() != same
    for outside in (f"ATTACH '{tmp_path}/x.db' AS x", f"VACUUM INTO '{tmp_path}/x.db'"):
        with pytest.raises(ToolError):
            await one.sql(outside)
    assert await other.sql("SELECT price FROM item WHERE id = 1") == "price\n2.5\n(1 row)"
    assert [each.name for each in tmp_path.iterdir()] == ["shop.db"]


@pytest.mark.slow
async def test_writing_in_duckdb_needs_a_script(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="pip install 'agentrl-framework[duckdb]'")
    shop = await opened("duckdb", write=True)
    await shop.sql("DELETE FROM item WHERE id = 1")
    assert await shop.sql("SELECT COUNT(*) AS n FROM item") == "n\n2\n(1 row)"
    path = tmp_path / "shop.duckdb"
    duckdb.connect(str(path)).close()
    with pytest.raises(TaskError, match="can only be read"):
        await opened(where=str(path), write=True)


@pytest.mark.slow
async def test_the_state_is_what_has_been_seen(engine: Any) -> None:
    one, other = await opened(engine), await opened(engine)
    assert one.state_key() == other.state_key()
    await one.sql("SELECT 1 AS a")
    assert one.state_key() != other.state_key()
    await other.sql("SELECT 2 AS b")
    await one.sql("SELECT 2 AS b")
    await other.sql("SELECT 1 AS a")
    assert one.state_key() == other.state_key()


@pytest.mark.slow
async def test_bad_input_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="rows must be at least 1"):
        Sql(rows=0)
    for data in ({}, {"database": 3}, {"database": str(tmp_path / "none.db")}, {"database": "CREATE nothing;"}):
        with pytest.raises(TaskError, match="database"):
            await Sql().open(Task.of("t", "", **data), None)
    text = tmp_path / "text.db"
    text.write_text("no database " * 100)
    with pytest.raises(TaskError, match="text.db"):
        await Sql(database=str(text)).open(Task.of("t", ""), None)
    with pytest.raises(TaskError, match=r"-> .*ends in \.sql"):
        await Sql(database=str(text)).open(Task.of("t", ""), None)
    with pytest.raises(TaskError, match=f"no file {Path('none.db').absolute()}.*\n.*-> .*absolute"):
        await Sql().open(Task.of("t", "", database="none.db"), None)
    with pytest.raises(RecipeError, match=r"sql: database: there is no database .*none\.db"):
        Sql(database=str(tmp_path / "none.db"))
    await Sql().close()


@pytest.mark.slow
async def test_the_path_of_a_script_is_read_as_the_script(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "shop.sql"
    for script, tables in ((SHOP, ["item", "sale"]), ("CREATE TABLE item (id INTEGER)", ["item"]), ("", [])):
        path.write_text(script)
        shop = await opened(engine, str(path))
        assert (await shop.schema()).count("CREATE TABLE") == len(tables)
        await shop.close()


HELD = "BEGIN EXCLUSIVE; INSERT INTO item VALUES (4, 'cup', 4.0)"


def test_a_file_that_is_written_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(SHOP)
    shop = open_database(str(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.executescript(HELD)
    with pytest.raises(QueryFailed, match="locked"):
        shop.run("SELECT COUNT(*) FROM item", QueryLimits(seconds=0.1))
    with pytest.raises(QueryFailed, match="no such column"):  # at once: nothing is locked
        shop.run("SELECT 1 FROM item WHERE [is locked] = 1", QueryLimits(seconds=1000.0))
    with monkeypatch.context() as patch:  # it is there as soon as somebody waits for it
        patch.setattr("agentrl.sql.sqlite.time.sleep", lambda seconds: other.execute("COMMIT"))
        assert shop.run("SELECT COUNT(*) AS n FROM item", QueryLimits(seconds=1000.0)) == Result(["n"], [(4,)])
    assert shop.run("SELECT COUNT(*) AS n FROM item", QueryLimits()) == Result(["n"], [(4,)])
