"""The rewards of SQL: the result of a query, and terms of its text."""

from __future__ import annotations

import functools
import json
import re
import resource
from pathlib import Path

import pytest

from agentrl.rewards.components import RewardSet
from agentrl.rewards.functions.result_match import fraction
from agentrl.rewards.functions.sql import sql_execution, sql_ngrams, sql_partial, sql_schema, sql_syntax
from agentrl.types.errors import TaskError
from agentrl.types.task import Task
from tests.rewards.make import make_episode

SHOP = """
CREATE TABLE item (id INTEGER, name TEXT, price REAL);
INSERT INTO item VALUES (1, 'pen', 2.0), (2, 'ink', 5.0), (3, 'pad', 5.0);
"""


@pytest.mark.slow
@pytest.mark.parametrize(("query", "gold", "right"), [
    ("SELECT name FROM item WHERE price = 5 ORDER BY id DESC", "SELECT name FROM item WHERE price > 2", 1.0),
    ("```sql\nSELECT name FROM item WHERE price >= 5;\n```", "SELECT name FROM item WHERE price > 2", 1.0),
    ("SELECT name FROM item ORDER BY id DESC", "SELECT name FROM item ORDER BY id", 0.0),
    ("SELECT DISTINCT price FROM item", "SELECT price FROM item", 0.0),
    ("SELECT nme FROM item", "SELECT name FROM item", 0.0),
    ("DROP TABLE item", "SELECT name FROM item", 0.0),
    ("ATTACH 'x.db' AS x", "SELECT name FROM item", 0.0),
    ("", "SELECT name FROM item", 0.0),
    ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n", "SELECT 1", 0.0),
])  # fmt: skip
async def test_sql_execution(query, gold, right):
    task = Task.of("t", "", sql=gold, database=SHOP)
    assert (await sql_execution(task, make_episode(task, answer=query))).value == right


@pytest.mark.slow
@pytest.mark.parametrize(("query", "why"), [
    ("SELECT hex(zeroblob(500000000))", "too big|toobig|no result"),
    ("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 90000) SELECT hex(zeroblob(10000)) FROM n",
     "more than 256 MiB"),
    ("SELECT replace(hex(zeroblob(16000000)), '0', hex(zeroblob(500))) || 1", "too big|toobig|no result"),
])  # fmt: skip
async def test_a_query_has_only_so_much_memory_and_time(query, why):
    task = Task.of("t", "", sql="SELECT 1", database=SHOP)
    found = await sql_execution(task, make_episode(task, answer=query), timeout_s=3.0)
    assert found.value == 0.0
    assert re.search(why, found.note), found.note
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 << 20, "KiB: the rows stay in the helper"


@pytest.mark.slow
async def test_a_gold_query_that_takes_too_long_is_the_tasks_fault():
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    task = Task.of("t", "", sql=endless, database=SHOP)
    with pytest.raises(TaskError, match="task t: "):
        await sql_execution(task, make_episode(task, answer="SELECT 1"), timeout_s=3.0)


@pytest.mark.slow
async def test_sql_of_a_file_is_only_read(tmp_path):
    import sqlite3

    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(SHOP)
    task = Task.of("t", "", sql="SELECT COUNT(*) FROM item", database=str(path))
    assert (await sql_execution(task, make_episode(task, answer="DELETE FROM item"))).value == 0.0
    assert (await sql_execution(task, make_episode(task, answer="SELECT 3"))).value == 1.0
    for broken, message in (
        ({"sql": "SELECT nothing"}, "the gold query fails"),
        ({"database": "no.db"}, "no database"),
    ):
        bad = Task.of("t9", "", **{**task.data, **broken})
        with pytest.raises(TaskError, match=f"task t9: .*{message}"):
            await sql_execution(bad, make_episode(bad, answer="SELECT 3"))


@pytest.mark.slow
async def test_one_file_is_the_database_of_all_tasks(tmp_path):
    path = tmp_path / "shop.sql"
    path.write_text(SHOP)
    task = Task.of("t", "", sql="SELECT COUNT(*) FROM item")
    episode = make_episode(task, answer="SELECT COUNT(id) FROM item")
    for function in (sql_execution, sql_partial, sql_syntax):
        assert (await function(task, episode, database=str(path))).value > 0
    assert await sql_schema(task, episode, database=str(path)) > 0
    with pytest.raises(TaskError, match=r"sql_execution: there is no database '.*none.db'"):
        await sql_execution(task, episode, database=str(tmp_path / "none.db"))
    for function in (sql_execution, sql_partial, sql_syntax, sql_schema):
        name = function.__name__
        with pytest.raises(TaskError, match=rf"task t: {name}: no database: .*\n.*`database`.*{name}: {{database: \./"):
            await function(task, episode)


def test_a_missing_database_is_found_before_the_first_episode(tmp_path):
    path = tmp_path / "shop.sql"
    path.write_text(SHOP)
    task = Task.of("t", "", sql="SELECT 1")
    for settings, right in (({}, False), ({"database": "./none.db"}, False), ({"database": "./shop.sql"}, True)):
        (component,) = RewardSet.from_recipe({"sql_execution": settings}, tmp_path).components
        if right:
            component.check_task(task)
        else:
            with pytest.raises(TaskError, match=r"'sql_execution' reads data .*\n.*`database`.*\./shop\.db"):
                component.check_task(task)


@functools.cache
def paverl() -> list[dict]:
    return json.loads((Path(__file__).parent / "data" / "paverl_sql.json").read_text())


def test_the_share_of_a_result_is_that_of_the_authors_code():
    """`data/paverl_sql.json`: 400 pairs of results with what accuracy_reward.py of PaVeRL-SQL gives them."""
    differ = []
    for number, case in enumerate(paverl()):
        said, gold = case["said"], case["gold"]
        share = fraction(said["rows"], said["width"], gold["rows"], gold["width"])
        if (10 * share if share > 0 else 0.5) != pytest.approx(case["reward"]):
            differ.append((number, share, case["reward"]))
    assert differ == [], len(differ)
    assert len({case["reward"] for case in paverl()}) == 8


@pytest.mark.slow
async def test_a_looked_up_value_is_right_on_one_database_only():
    other = SHOP + "\nDELETE FROM item WHERE id = 1;"
    task = Task.of("t", "", sql="SELECT COUNT(*) FROM item", database=[SHOP, other])
    assert (await sql_execution(task, make_episode(task, answer="SELECT 3"))).value == 0.0
    assert (await sql_execution(task, make_episode(task, answer="SELECT COUNT(id) FROM item"))).value == 1.0
    with pytest.raises(TaskError, match="'database' is empty"):
        await sql_execution(Task.of("t", "", sql="SELECT 1", database=[]), make_episode(task, answer="SELECT 3"))


@pytest.mark.slow
async def test_sql_partial_gives_a_share_of_ten():
    task = Task.of("t", "", sql="SELECT id, price FROM item ORDER BY id", database=SHOP)
    right = await sql_partial(task, make_episode(task, answer="SELECT price, id FROM item"))
    half = await sql_partial(task, make_episode(task, answer="SELECT id, id + 7 FROM item"))
    runs = await sql_partial(task, make_episode(task, answer="SELECT id + 9 FROM item"))
    fails = await sql_partial(task, make_episode(task, answer="SELECT nothing FROM item"))
    short = await sql_partial(task, make_episode(task, answer="SELECT 1"))
    assert [right.value, half.value, runs.value, fails.value, short.value] == [10.0, 5.0, 0.5, 0.0, 0.0]


@pytest.mark.slow
async def test_the_terms_of_reasoning_sql():
    task = Task.of("t", "", sql="SELECT id FROM item WHERE price > 2", database=SHOP)

    async def terms(answer: str | None) -> list[float]:
        episode = make_episode(task, answer=answer)
        syntax = await sql_syntax(task, episode)
        return [syntax.value, await sql_schema(task, episode), sql_ngrams(task, episode)]

    assert await terms("select ID from item  where price > 2") == [1.0, 1.0, 1.0]
    # {item, item.id} of {item, item.id, item.price}; 3 of 7 pairs of words.
    assert await terms("SELECT id FROM item") == pytest.approx([1.0, 2 / 3, 3 / 7])
    assert await terms("SELECT ids FROM item WHERE price > 2") == pytest.approx([0.0, 0.0, 5 / 9])
    assert await terms(None) == [0.0, 0.0, 0.0]
