"""The built-in rewards of published methods, on numbers worked out by hand."""

from __future__ import annotations

import functools
import json
import math
import re
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.curriculum.methods.zero_variance import value_of
from agentrl.rewards.components import RewardSet
from agentrl.rewards.functions.answers.symbolic import is_numeral
from agentrl.rewards.functions.calibration import brier
from agentrl.rewards.functions.cost import frugal_search, router_cost, search_planning, spent
from agentrl.rewards.functions.feedback import unary_feedback
from agentrl.rewards.functions.gui import gui_action, gui_format, gui_point, gui_success, gui_text, gui_type
from agentrl.rewards.functions.length import laser, overlong
from agentrl.rewards.functions.maths import maths
from agentrl.rewards.functions.patch import changes, patch_similarity
from agentrl.rewards.functions.reseek import evidence_judgement
from agentrl.rewards.functions.result_match import fraction
from agentrl.rewards.functions.retrieval import retrieval_recall, retrieval_utility
from agentrl.rewards.functions.sql import sql_execution, sql_ngrams, sql_partial, sql_schema, sql_syntax
from agentrl.rewards.functions.tries import tries
from agentrl.rewards.functions.verifiers import format, format_f1, tool_success, turn_format
from agentrl.sandbox.helper import Helper
from agentrl.types.episode import Context
from agentrl.types.errors import MissingExtra, RecipeError, TaskError
from agentrl.types.task import Task
from tests.beat import beside_the_loop
from tests.rewards.make import call, make_episode, turn

# -- maths


def test_a_recipe_is_refused_without_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingExtra, match=r"rewards.right(.|\n)*pip install 'agentrl-framework\[maths\]'"):
        RewardSet.from_recipe({"right": {"use": "maths"}})


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "gold", "right"), [
    (r"2^{3}", "2", 0.0),  # in plain text 2 was read of it
    (r"2^{3}", "8", 1.0),
    (r"we get 1729 ^ {1728}", "1729", 0.0),
    (r"\pm 5", "5", 0.0),  # so was 5, without the sign
    (r"x = \pm{5}", "5", 0.0),
    (r"\pm 5", r"\pm 5", 1.0),
    (r"It is 90^{\circ}.", "90", 1.0),
    (r"so it is $\frac{1}{2}$", "0.5", 1.0),
    (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1.0),
    (r"$x^2-1$", "(x-1)(x+1)", 1.0),
    (r"$\{2, 1\}$", r"\{1,2\}", 1.0),
    (r"$\frac{1}{3}$", "0.5", 0.0),
    ("no idea", "7", 0.0),
    (None, "7", 0.0),
    ("$3$", ["2", "3"], 1.0),
])  # fmt: skip
async def test_symbolic_equality(answer, gold, right):
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    task = Task.of("t", "", answer=gold)
    assert await maths(task, make_episode(task, answer=answer), timeout_s=60) == right


@pytest.mark.parametrize("text", [
    "12", "-1,000.5", "3/4", r"\frac{3}{4}", r"$\dfrac{3}{4}$", "2.5e3", r"50\%", "50%", "x = 5", r"$-\frac{1}{2}$",
    ".5", r"3\frac{1}{2}", "1 + 1 = 2", r"5 \text{ apples}", r"2 \times 10^{3}", r"\$5.00", r"90^\circ",
])  # fmt: skip
def test_what_is_a_number(text: str) -> None:
    assert is_numeral(text)


@pytest.mark.parametrize("text", [
    "84 + 6 * 31", "1/(1/23+1/18)", "3!", "2^{10}", r"\sqrt{4}", r"\frac{1+1}{2}", r"\sum_{i=1}^{4} i", "5*3", "x", "",
    "3-4", "1/2/3", r"\binom{4}{2}", "0.1+0", "- -3", "2 = 1 + 1", r"\int_0^1 2x dx", "\u0661", "1e3e3",
])  # fmt: skip
def test_what_is_no_number(text: str) -> None:
    assert not is_numeral(text)


@pytest.mark.slow
@pytest.mark.parametrize(("question", "gold", "answers"), [
    ("Compute 84 + 6 * 31.", "270", {
        "84 + 6 * 31": 0.0, "$84 + 6*31$": 0.0, "6 * 31 + 84": 0.0, "270": 1.0, r"\boxed{270}": 1.0, "$x = 270$": 1.0,
        "84 + 6 * 31 = 270": 1.0, "270 = 84 + 6 * 31": 0.0, "271": 0.0, r"$\frac{540}{2}$": 0.0,
    }),
    ("How long do both take: 1/(1/23+1/18)?", "414/41", {"1/(1/23+1/18)": 0.0, "414/41": 1.0, "828/82": 1.0}),
    ("Compute 540 / 2.", "270", {
        "540/2": 0.0, "540 / 2": 0.0, r"$\frac{540}{2}$": 0.0, r"\boxed{\dfrac{540}{2}}": 0.0, "270/1": 0.0,
        "270.0": 1.0, "540 / 2 = 270": 1.0,
    }),
    ("How many are 3/4 of 1,000?", "$750$", {"3000/4": 0.0, "750": 1.0}),
    (r"Reduce $\frac{6}{24}$.", r"$\frac{1}{4}$", {
        "6/24": 0.0, r"$\frac{6}{24}$": 0.0, "1/4": 1.0, "0.25": 1.0, "2/8": 1.0,
    }),
    ("Which is more, 1/3 or 1/4?", r"$\frac{1}{3}$", {"1/3": 1.0, r"$\frac{1}{3}$": 1.0, "1/4": 0.0}),
    ("What is 3!?", "6", {"3!": 0.0, "6": 1.0, "3*2": 0.0}),
    ("Factor $x^2 - 1$.", "(x-1)(x+1)", {"x^2-1": 0.0, "$x^2 - 1$": 0.0, "(x+1)(x-1)": 1.0, "(x-1)(x+1)": 1.0}),
    ("Is it 1/2 or x + 1?", ["0.5", "x+1"], {"1/2": 1.0, "$x + 1$": 1.0}),
])  # fmt: skip
async def test_a_formula_of_the_question_is_no_answer(question: str, gold: Any, answers: dict[str, float]) -> None:
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    task = Task.of("t", question, answer=gold)
    found = {}
    for answer in answers:
        said = await maths(task, make_episode(task, answer=answer), form="value", timeout_s=60)
        found[answer] = said if isinstance(said, float) else said.value
        assert isinstance(said, float) or said.note in ("", "not computed", "the question's own text"), said
    assert found == answers


@pytest.mark.slow
@pytest.mark.parametrize(("gold", "right", "hedged"), [
    ("1729",
        ["The answer is 1729.", "The answer is 1729 apples.", "The answer is 1,729 dollars",
         "The answer is 1729 because 12^3 + 1^3 = 1729.", "The answer is 1729, and we are done by Theorem 5.",
         "It is 1728 or 1729, and 1728 fails. The answer is 1729.", "The answer is 1729. It is the sum of 2 cubes.",
         "The answer is 1729. Of 11729, 20 are left.", "The answer is 1729. It is the last of 1728, 1729, 1730"],
        ["The answer is 1729 or 1730.", "The answer is 1729, or 1730.", "The answer is 1729 and 1730.",
         "The answer is 1729; maybe 1730.", "The answer is 1729. No, 1730.", "The answer is 1729 if x, else 1730.",
         "The answer is 1729 or 1730: see 1729", "The answer is between 1729 and 1800", "The answer is 1729, 1730",
         "The answer is 1729, and possibly also perhaps 1730.",
         "1,729,0", "The answer is 1,729,0.", "The answer is 1,729 or 1,730",
         "The answer is 1729\n1730\n1731", "The answer is x=1729, y=1730", "The answer is 1729 \u00b1 5"]),
    (r"$\{1, 2\}$", [r"The answer is $\{1, 2\}$"], []),
])  # fmt: skip
async def test_several_answers_are_none(gold: str, right: list[str], hedged: list[str]) -> None:
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    task, found = Task.of("t", "How many?", answer=gold), {}
    for answer in (*right, *hedged):
        said = await maths(task, make_episode(task, answer=answer), timeout_s=60)
        found[answer] = said if isinstance(said, float) else said.value
    assert found == {**dict.fromkeys(right, 1.0), **dict.fromkeys(hedged, 0.0)}


@pytest.mark.slow
async def test_what_takes_too_long_scores_nothing_and_the_next_is_compared():
    """An answer that nobody can compare must not be a way out of a wrong one."""
    pytest.importorskip("math_verify", reason="pip install 'agentrl-framework[maths]'")
    task = Task.of("t", "", answer="4")
    for answer in ("$9^{9^{9^{9}}} + x$", "$" + "(" * 15_000 + "4", "4" * 30_000):
        found = await maths(task, make_episode(task, answer=answer), timeout_s=1.0)
        assert (found if isinstance(found, float) else found.value) == 0.0
    assert await maths(task, make_episode(task, answer="$2+2$"), timeout_s=60) == 1.0
    task = Task.of("t", "", answer="$9^{9^{9^{9}}} + x$")
    found = await maths(task, make_episode(task, answer="$9^{9^{9^{8}}} + x$"), timeout_s=1.0)
    assert (found.value, found.note) == (0.0, "no result within 1 s")


# -- SQL

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


# -- patches

GOLD = """diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@
 import os
-x = 1
+x = 2
"""


async def test_a_patch_with_a_number_that_python_does_not_read_is_malformed():
    task, nines = Task.of("t", "", patch=GOLD), "9" * 5000
    answer = f"--- a/x\n+++ b/x\n@@ -1,{nines} +1,{nines} @@\n+x\n"
    assert (await patch_similarity(task, make_episode(task, answer=answer))).value == -1.0


@pytest.mark.slow
async def test_patch_similarity():
    task = Task.of("t", "", patch=GOLD)
    assert (await patch_similarity(task, make_episode(task, answer=GOLD))) == 1.0
    assert (await patch_similarity(task, make_episode(task, answer=f"```diff\n{GOLD}```"))) == 1.0
    assert (await patch_similarity(task, make_episode(task, answer="x = 2"))).value == -1.0
    # Hunks of 40 characters that differ in one: ratio 2 * 39 / 80.
    near = GOLD.replace("+x = 2", "+x = 3")
    assert len(changes(GOLD)["a.py"]) == 40
    assert (await patch_similarity(task, make_episode(task, answer=near))) == pytest.approx(2 * 39 / 80)
    # Another file: neither side has the other's, so both count 0.
    other = GOLD.replace("a.py", "b.py")
    assert (await patch_similarity(task, make_episode(task, answer=other))) == 0.0
    assert (await patch_similarity(task, make_episode(task, answer=GOLD + other))) == 0.5


@pytest.mark.slow
async def test_a_patch_that_takes_too_long_to_compare_scores_nothing_and_holds_up_nobody():
    spaces = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-{}\n+{}\n"
    task = Task.of("t", "", patch=spaces.format(" " * 24_000, "x" + " " * 24_000))
    slow = make_episode(task, answer=spaces.format("y" + " " * 24_000, " " * 23_000))
    with beside_the_loop(Helper, "_ask"):
        found = await patch_similarity(task, slow, timeout_s=1.0)
    assert (found.value, found.note) == (0.0, "no result within 1 s")
    assert await patch_similarity(task, make_episode(task, answer=task.data["patch"]), timeout_s=60) == 1.0


def test_lines_that_look_like_headers_are_content_inside_a_hunk():
    patch = "--- a/q.sql\n+++ b/q.sql\n@@ -1,2 +1,1 @@\n--- a comment\n keep\n"
    patch += "--- a/r.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
    assert changes(patch) == {
        "q.sql": "@@ -1,2 +1,1 @@\n--- a comment\n keep",
        "r.txt": "@@ -1 +0,0 @@\n-gone",
    }
    moved = "--- a/old.py\n+++ b/new.py\n@@ -1 +1 @@\n-a\n+b\n"
    assert changes(moved) == {"old.py": "rename from old.py to new.py\n@@ -1 +1 @@\n-a\n+b"}


# -- search


def searching(*results, answer="x", **data):
    task = Task.of("t", "", answer="x", evidence=["Red Fox", "Blue Whale"], **data)
    turns = [turn(call(result=result)) if result is not None else turn() for result in results]
    return task, make_episode(task, *turns, answer=answer)


def test_retrieval():
    task, episode = searching("about the red fox.", None, "red fox again", "a blue whale; a red fox")
    assert retrieval_utility(task, episode) == [0.5, None, 0.0, 0.5]
    assert retrieval_recall(task, episode) == 1.0
    assert retrieval_recall(*searching("a redfox", "bluewhale")) == 0.0
    assert retrieval_recall(task, episode, search_tools=["other"]) == 0.0


@pytest.mark.parametrize(("results", "expected"), [
    # m = 4. Stopped at the search that found the last piece: R_max + zeta * h / m.
    (["red fox", "blue whale"], 2.0 + 0.4 * 2 / 4),
    # One search too many: log((1 - 1/4) / (1/4)).
    (["red fox", "blue whale", "nothing"], math.log(3)),
    # Both at once, then two useless ones: log((1 - 2/4) / (2/4)) = 0.
    (["red fox blue whale", "nothing", "nothing"], 0.0),
    # Recall 0.5 < 0.6 after one search: |1 - 4| / 4 = 0.75, log(1/3), below 0.
    (["red fox"], math.log(1 / 3)),
    # Nothing found after 3 of 3: 1/4, log(3), but at most 0.
    (["nothing", "nothing", "nothing"], 0.0),
    # No search at all: x = 1, cut at 1 - 1e-6, and at -R_max.
    ([], -2.0),
])  # fmt: skip
def test_frugal_search(results, expected):
    found = frugal_search(*searching(*results), max_searches=3, zeta=0.4)
    assert found.value == pytest.approx(expected)


def test_searches_of_one_turn_count_one_by_one():
    """Useless searches in the turn of a useful one are as useless as in turns of their own."""
    task, _ = searching()
    results = ["red fox blue whale", "nothing", "nothing"]
    episode = make_episode(task, turn(*(call(result=result) for result in results)))
    assert frugal_search(task, episode, max_searches=3).value == pytest.approx(0.0)


def test_format_f1_is_f1_or_a_penalty():
    task = Task.of("t", "?", answer="big blue")
    assert format_f1(task, make_episode(task, turn(), answer="blue")) == pytest.approx(2 / 3)
    assert format_f1(task, make_episode(task, turn(call(outcome="malformed")), answer="big blue"), wrong=-2.0) == -2.0
    assert format_f1(task, make_episode(task, turn())) == -1.0


def test_router_cost():
    task, episode = searching("a", "b")
    priced = {"prices": {"search": 3.0}, "high": 10.0, "alpha": 0.9}
    # Cost 6 of 0..10: C = 0.4; 0.1 * 1 + 0.9 * 0.4.
    assert router_cost(task, episode, **priced).value == pytest.approx(0.46)
    assert router_cost(task, make_episode(task, answer="wrong"), **priced).value == 0.0
    assert router_cost(task, make_episode(task), **priced).value == -1.0
    malformed = make_episode(task, turn(call(outcome="malformed")), answer="x")
    assert router_cost(task, malformed, **priced).value == -1.0
    # A model of the tool `route` has a price of its own: cost 4 + 1, C = 0.5.
    routed = make_episode(task, turn(call("route", model="big")), turn(call("route", model="small")), answer="x")
    by_model = {"prices": {"route": 1.0, "route:big": 4.0}, "high": 10.0, "alpha": 0.9}
    assert router_cost(task, routed, **by_model).value == pytest.approx(0.1 + 0.9 * 0.5)
    words = make_episode(
        task, turn(call("route", "a b c", model="big"), call("route", "no", outcome="error", model="big")), answer="x"
    )
    by_word = {"prices": {"route:big": 4.0}, "high": 24.0, "per": "word"}
    assert router_cost(task, words, **by_word).value == pytest.approx(0.1 + 0.9 * 0.5)  # 3 words of 4.0
    # An empty range of costs: C = 0.5.
    assert router_cost(task, episode, prices={}, high=0.0, alpha=0.5).value == pytest.approx(0.75)
    # 100 tokens at 0.01 and no call: cost 1, C = 0.9.
    tokens = make_episode(task, answer="x", tokens=100)
    assert router_cost(task, tokens, **priced, per_token=0.01).value == pytest.approx(0.1 + 0.9 * 0.9)


def test_search_planning():
    task, episode = searching("a", "b", no_search_score=0.25)
    # Gain 1 - 0.25; cost (2/10 + 2/10) / 2 = 0.2, times 0.5.
    assert search_planning(task, episode, cost_weight=0.5).value == pytest.approx(0.65)


async def test_judgements_of_evidence():
    task = Task.of("t", "", answer="blue whale")
    turns = [
        turn(call(result="the blue whale is large"), text="search"),
        turn(call(result="nothing"), text="<judge>yes</judge>"),  # right: useful, accepted
        turn(call(result="a blue whale"), text="<judge>Yes</judge>"),  # accepts the useless
        turn(call(result="blue cheese"), text="<judge>no</judge>"),  # rejects the useful
        turn(text="<judge> no </judge>"),  # right: recall 0.5 is not above 0.7
        turn(text="<judge>yes</judge>"),  # there was no search before it
    ]
    episode = make_episode(task, *turns)
    assert await evidence_judgement(task, episode) == [None, 0.3, -0.6, -0.3, 0.3, None]

    async def always(result: str, reference: str) -> float:
        return 0.9

    assert (await evidence_judgement(task, episode, scorer=always))[4] == -0.3


# -- the rest


def test_gui_actions():
    actions = [
        {"type": "click", "box": [10, 10, 20, 20]},
        {"type": "click", "point": [5, 5]},
        {"type": "input", "text": "hello big world"},
        None,
        {"type": "scroll"},
        {"type": "click", "box": [0, 0, 1, 1]},
    ]
    task = Task.of("t", "", actions=actions)
    episode = make_episode(
        task,
        turn(call("click", x=15, y=20)),
        turn(call("click", point=[8, 9])),  # 5 away
        turn(call("input", text="hello world")),  # F1 2 * 2 / 5 = 0.8
        turn(call("click", x=1, y=1)),
        turn(call("scroll")),
        turn(call("input", text="x")),
        turn(call("click", x=1, y=1)),
    )
    assert gui_action(task, episode) == [1.0, 0.5, 1.0, None, 1.0, 0.0, None]
    assert gui_action(task, episode, radius=5.0, text_f1=0.9, type_weight=0.25)[:3] == [1.0, 1.0, 0.25]
    with pytest.raises(TaskError, match="task t: no gold actions"):
        gui_action(Task.of("t", ""), episode)


CLICK = {"type": "left_click", "box": [10, 10, 20, 20]}
TYPE = {"type": "type", "box": [0, 0, 9, 9], "text": "hello big world"}
SCROLL = {"type": "scroll", "direction": "down"}
KEY = {"type": "key", "text": "ctrl+s"}


# By hand, from the papers (sections 3.2) and the authors' code: type, point, UI-R1's point, text, success.
@pytest.mark.parametrize(("gold", "done", "scores"), [
    (CLICK, call("left_click", coordinate=[10, 20]), (1, 1, 1, 1, 1)),
    (CLICK, call("left_click", coordinate=[21, 20]), (1, 0, 0, 1, 0)),
    (CLICK, call("right_click", coordinate=[15, 15]), (0, 1, 0, 0, 0)),  # the right point earns its part, not in UI-R1
    (CLICK, call("left_click"), (1, 0, 0, 1, 0)),
    (CLICK, call("computer", action="left_click", coordinate=[15, 15]), (1, 1, 1, 1, 1)),
    (CLICK, call("computer_use", action="mouse_move", coordinate=[15, 15]), (0, 1, 0, 0, 0)),
    (TYPE, call("type", coordinate=[5, 5], text="hello world"), (1, 1, 1, 1, 1)),  # F1 2 * 2 / 5 = 0.8
    (TYPE, call("type", coordinate=[50, 5], text="hello you and me"), (1, 0, 0, 0, 0)),  # 2 * 1 / 7
    (TYPE, call("left_click", coordinate=[5, 5], text="hello big world"), (0, 1, 0, 1, 0)),
    (SCROLL, call("scroll", scroll_direction="down"), (1, 1, 1, 1, 1)),  # without point and text: by the type
    (SCROLL, call("scroll", scroll_direction="up"), (0, 0, 0, 0, 0)),
    (SCROLL, call("left_click", coordinate=[5, 5]), (0, 0, 0, 0, 0)),
    (SCROLL, call("act", action="scroll", input_text="down"), (1, 1, 1, 1, 1)),
    (TYPE, call("act", action="type", point=[5, 5], input_text="hello"), (1, 1, 1, 1, 1)),  # 2 * 1 / 4
    (SCROLL, call("computer_use", action="scroll", pixels=-300), (1, 1, 1, 1, 1)),
    (SCROLL, call("computer_use", action="scroll", pixels=300), (0, 0, 0, 0, 0)),
    (KEY, call("computer_use", action="key", keys=["ctrl", "s"]), (1, 1, 1, 1, 1)),
    (KEY, call("computer_use", action="key", keys=["ctrl", "v"]), (1, 1, 1, 0, 0)),
])  # fmt: skip
def test_the_terms_of_gui_r1_and_ui_r1(gold, done, scores):
    task = Task.of("t", "", actions=[gold])
    episode = make_episode(task, turn(done))
    as_in_ui_r1 = gui_point(task, episode, with_type=True)
    terms = (gui_type(task, episode), gui_point(task, episode), as_in_ui_r1, gui_text(task, episode))
    assert (*terms, gui_success(task, episode)) == scores
    assert gui_format(task, episode) == 1.0


def test_gui_terms_are_shares_of_the_gold_actions():
    task = Task.of("t", "", actions=[CLICK, None, SCROLL, SCROLL])
    right = call("left_click", coordinate=[15, 15])
    episode = make_episode(task, turn(right), turn(), turn(right, right))
    assert gui_type(task, episode) == gui_success(task, episode) == gui_format(task, episode) == 1 / 3
    for term in (gui_type, gui_point, gui_text, gui_format, gui_success):
        assert term(task, make_episode(task)) == 0.0
        with pytest.raises(TaskError, match="task t: no gold actions"):
            term(Task.of("t", ""), episode)


@pytest.mark.parametrize("point", [["nan", "nan"], [float("nan"), 5], [1e200, 5], [10**400, 5], ["-inf", 5]], ids=repr)
@pytest.mark.parametrize("gold", [{"point": [5, 5]}, {"box": [0, 0, 9, 9]}], ids=["point", "box"])
def test_a_point_that_is_nowhere_is_not_the_right_one(point, gold):
    task = Task.of("t", "", actions=[{"type": "click", **gold}])
    assert gui_action(task, make_episode(task, turn(call("click", point=point)))) == [0.5]


@pytest.mark.parametrize(("answer", "expected"), [
    ("Paris <confidence>0.8</confidence>", 1 - 0.2**2),
    ("Paris <confidence> 80 %</confidence>", 1 - 0.2**2),
    ("Lyon <confidence>0.8</confidence>", 1 - 0.8**2),
    ("Paris <confidence>8</confidence>", 0.0),
    ("Paris <confidence>.</confidence>", 0.0),
    ("Paris", 0.0),
    ("<confidence>1" + " " * 1_000_000 + "x", 0.0),  # a quadratic scan takes hours
    (None, 0.0),
])  # fmt: skip
def test_brier(answer, expected):
    task = Task.of("t", "", answer="Paris")
    assert brier(task, make_episode(task, turn(), answer=answer)).value == pytest.approx(expected)


def test_brier_reads_the_last_turn_and_refuses_a_broken_pattern():
    task = Task.of("t", "", answer="Paris")
    episode = make_episode(task, turn(text="I am sure: <confidence>1</confidence>"), answer="Paris")
    assert brier(task, episode).value == 1.0
    with pytest.raises(RecipeError, match="pattern"):
        brier(task, episode, pattern="(")


def test_lengths():
    task = Task.of("t", "", answer="x")
    assert laser(task, make_episode(task, answer="x", tokens=100), target=100) == 0.5
    assert laser(task, make_episode(task, answer="x", tokens=101), target=100) == 0.0
    assert laser(task, make_episode(task, answer="y", tokens=1), target=100) == 0.0
    # 90 of 100, buffer 40: 30 of 40 into it. Beyond the maximum it stays at -factor.
    assert overlong(make_episode(task, tokens=90), max_tokens=100, buffer=40) == -0.75
    assert overlong(make_episode(task, tokens=500), max_tokens=100, buffer=40, factor=2.0) == -2.0
    assert overlong(make_episode(task, tokens=60), max_tokens=100, buffer=40) == 0.0


def test_the_scores_of_tries_are_paid_at_the_end_or_where_each_try_ends() -> None:
    task = Task.of("t", "?")
    episode = make_episode(task, turn(), turn(), turn(), turn())
    info = {"tries": [{"score": 0.25, "turns": [0, 1]}, {"score": 1.0, "turns": [2]}, {"score": 0.5, "turns": [3]}]}
    found = {of: tries(episode, info, of=of) for of in ("last", "first", "best", "gain")}
    assert {of: value.value for of, value in found.items()} == {"last": 0.5, "first": 0.25, "best": 1.0, "gain": 0.25}
    assert tries(episode, info, turns=True).value == [0.0, 0.25, 1.0, 0.5]
    assert tries(episode, info, of="gain", turns=True).value == [0.0, 0.25, 0.75, -0.5]
    assert tries(episode, {}).value == 0.0
    assert tries(episode, {}, turns=True).value == [0.0] * 4


def test_unary_feedback():
    task = Task.of("t", "", answer="4")
    answers = ["3", "", "3", "4"]
    turns = [turn(call("answer", answer=answer)) for answer in answers]
    # The empty one does not count: 4 comes as the third answer, (1/2)^2; 2 of 3 differ: 0.5 * (1 - 2/3).
    assert unary_feedback(task, make_episode(task, *turns)).value == pytest.approx([0, 0, 0, 0.25 - 0.5 / 3])
    spoken = [turn(text=f"<answer>{answer}</answer>") for answer in answers]
    found = unary_feedback(task, make_episode(task, *spoken), pattern="<answer>(.*?)</answer>", repetition=0.0)
    assert found.value == [0, 0, 0, 0.25]
    assert unary_feedback(task, make_episode(task)).value == []


def test_turn_format():
    assert [turn_format(turn(call(outcome=outcome))) for outcome in ("ok", "error", "malformed")] == [1, 1, 0]


def test_turns_of_another_voice_are_not_rewarded():
    user = Context(role="user", prompt=[], policy="user")
    own = [turn(call(outcome="malformed")), turn(call(outcome="ok"))]
    spoken = turn(call(outcome="ok"), context="user", rewards={"shaped": 1.0})
    task = Task.of("t", "", answer="x")
    alone = make_episode(task, *own, answer="x")
    beside = make_episode(task, own[0], spoken, own[1], answer="x", contexts={"user": user})
    for score in (
        format,
        tool_success,
        lambda e: value_of(e, "total"),
        lambda e: search_planning(task, e, max_turns=9),
    ):
        assert score(beside) == score(alone)
    assert spent(beside, {"search": 1.0}) == spent(alone, {"search": 1.0}) == 2.0
