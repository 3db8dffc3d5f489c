"""The built-in rewards of published methods, on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from agentrl.curriculum.methods.zero_variance import value_of
from agentrl.rewards.functions.calibration import brier
from agentrl.rewards.functions.cost import frugal_search, router_cost, search_planning, spent
from agentrl.rewards.functions.feedback import unary_feedback
from agentrl.rewards.functions.gui import gui_action, gui_format, gui_point, gui_success, gui_text, gui_type
from agentrl.rewards.functions.length import laser, overlong
from agentrl.rewards.functions.patch import changes, patch_similarity
from agentrl.rewards.functions.reseek import evidence_judgement
from agentrl.rewards.functions.retrieval import retrieval_recall, retrieval_utility
from agentrl.rewards.functions.tries import tries
from agentrl.rewards.functions.verifiers import format, format_f1, tool_success, turn_format
from agentrl.sandbox.helper import Helper
from agentrl.types.episode import Context
from agentrl.types.errors import RecipeError, TaskError
from agentrl.types.task import Task
from tests.beat import beside_the_loop
from tests.rewards.make import call, make_episode, turn

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
