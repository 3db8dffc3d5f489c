"""Queries of the `sql` tool run in helper processes, and what they take there is bounded."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from typing import Any

import pytest

from agentrl.sandbox.helper import Helper
from agentrl.sql.process import MEMORY_MB
from agentrl.tools.builtin.sql import Sql
from agentrl.types.errors import ToolError
from agentrl.types.task import Task
from tests.sql.test_sql import SHOP, opened

pytestmark = pytest.mark.slow

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
EVIL = {
    "sqlite": [
        "SELECT instr(hex(zeroblob(499000)), hex(zeroblob(250000)) || '1')",  # one step, which nothing interrupts
        "SELECT printf('%.*c', 2000000000, 'x')",
        "SELECT instr(hex(zeroblob(10000000)), hex(zeroblob(5000000)) || '1')",
        f"SELECT COUNT(*) FROM item WHERE printf('%.900000c', 'a') LIKE '{'%a' * 2000}b'",
        f"{ENDLESS} SELECT DISTINCT hex(zeroblob(400000)) || i FROM n",
        f"{ENDLESS} SELECT group_concat(hex(zeroblob(1000))) FROM n", f"{ENDLESS} SELECT i FROM n ORDER BY -i",
        "SELECT 1 " + "UNION SELECT 1 " * 400, "SELECT " + "(" * 900 + "1" + ")" * 900,
    ],
    "duckdb": [
        "SELECT unnest(range(10**8)) AS i ORDER BY i DESC", "SELECT len(range(60000000))",
        "SELECT count(*) FROM range(10**12) a", "SELECT repeat('x', 10**9)",
        "SELECT len(list(i)) FROM range(10**9) t(i)",
    ],
}  # fmt: skip


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
async def test_what_a_query_takes_is_bounded_and_neighbours_go_on(engine: Any) -> None:
    if engine == "duckdb":
        pytest.importorskip("duckdb", reason="pip install 'agentrl-framework[duckdb]'")
    evil, honest = await opened(engine, timeout_s=1.0), await opened(engine)

    async def tried(query: str) -> str:
        try:
            return await evil.sql(query)
        except ToolError as error:
            return str(error)

    async def asked() -> str:
        return await honest.sql("SELECT COUNT(*) AS n FROM item")

    for query in EVIL[engine]:
        said, found = await asyncio.gather(tried(query), asked())
        assert len(said) < 5000, query
        assert found == "n\n3\n(1 row)"
    assert await evil.sql("SELECT 1 AS a") == "a\n1\n(1 row)"


async def test_no_query_runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: pytest.fail("a database is opened in this process"))
    shop, own = await opened(), await opened(write=True)
    assert await shop.sql("SELECT name FROM item WHERE id = 1") == "name\ntea\n(1 row)"
    assert await own.sql("DELETE FROM item") == "done"
    assert "CREATE TABLE item" in await own.schema()
    with pytest.raises(ToolError, match="not authorized"):
        await shop.sql("SELECT fts3_tokenizer('simple')")


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
async def test_a_write_that_is_ended_changes_nothing(engine: Any) -> None:
    if engine == "duckdb":
        pytest.importorskip("duckdb", reason="pip install 'agentrl-framework[duckdb]'")
    shop = await opened(engine, write=True, timeout_s=1.0)
    assert await shop.sql("INSERT INTO item VALUES (4, 'cup', 4.0)") in ("done", "Count\n1\n(1 row)")
    held = shop.state_key()
    many = {
        "sqlite": f"INSERT INTO item {ENDLESS} SELECT i, hex(zeroblob(1000)), 1.0 FROM n",
        "duckdb": "INSERT INTO item SELECT 1, repeat('x', 1000) || i, 1.0 FROM range(10**9) t(i)",
    }[engine]
    with pytest.raises(ToolError):
        await shop.sql(many)
    assert shop.state_key() == held
    assert await shop.sql("SELECT COUNT(*) AS n FROM item") == "n\n4\n(1 row)"
    await shop.close()


async def test_what_is_shown_is_bounded_in_every_part() -> None:
    shop = await opened(chars=300)
    name = "n" * 100_000
    assert len(await shop.sql(f"SELECT 1 AS {name}")) < 1000
    with pytest.raises(ToolError) as wrong:
        await shop.sql(f"SELECT {name} FROM item")
    assert len(str(wrong.value)) < 3000
    with pytest.raises(ToolError) as none:
        await shop.schema(name)
    assert len(str(none.value)) < 1000
    script = f"{SHOP} CREATE TABLE [{name}] (a);"
    assert len(await (await opened(where=script, chars=300)).schema()) < 1000


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
async def test_databases_that_lie_open_leave_room_for_the_next(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one process, after queries that took what they may."""
    if engine == "duckdb":
        pytest.importorskip("duckdb", reason="pip install 'agentrl-framework[duckdb]'")
    monkeypatch.setattr("agentrl.tools.builtin.sql._HELPER", Helper("agentrl.sql.process", memory_mb=MEMORY_MB, size=1))
    for number in range(6):
        shop = Sql(database=SHOP + f"CREATE TABLE t{number} (x INTEGER);", engine=engine)
        await shop.open(Task.of("t", "?"), None)
        for query in ("SELECT list(x) FROM range(20000000) r(x)", "SELECT repeat('x', 200000000)"):
            with suppress(ToolError):
                await shop.sql(query)
        assert await shop.sql(f"SELECT COUNT(*) AS n FROM t{number}") == "n\n0\n(1 row)"
        await shop.close()
