"""recipes/bfcl: its verdict against the package's own checker, its scripts, and what its APIs must not do."""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.types.errors import TaskError, ToolError
from agentrl.types.task import Task
from tests.sound import played

RECIPE = Path(__file__).parents[2] / "recipes" / "bfcl"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)
needs_bfcl = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason="pip install --no-deps bfcl-eval==2026.3.23"
)
MORE = "agent.max_turns=16"  # what random calls do is seen soon
Rounds = list[list[Any]]


@functools.cache
def tasks() -> list[Task]:
    return list(load("./task.py:conversations")())


@pytest.mark.slow
@needs_bfcl
@pytest.mark.parametrize(("script", "reward"), [("oracle", 1.0), ("random", 0.0)])
def test_the_oracle_solves_what_random_calls_do_not(tmp_path: Path, script: str, reward: float) -> None:
    run = played(RECIPE, 8, script, tmp_path / "run", MORE)
    rows, episodes = list(run.episodes), list(run.whole_episodes())
    assert {row.status for row in rows} <= {"done", "truncated"}
    assert {row.reward for row in rows} == {reward}
    assert {episode.task.id.removeprefix("multi_turn_").rpartition("_")[0] for episode in episodes} == {*CATEGORIES}
    if script == "oracle":
        late = next(episode for episode in episodes if "miss_func" in episode.task.id)
        appeared = [turn.tools for turn in late.turns if turn.tools]
        assert len(appeared) == 1
        assert len(appeared[0]) > len(late.tools or []), "a function appears"
        assert any(branch.reason == "tools" for branch in late.branches)


@pytest.mark.slow
@needs_bfcl
@pytest.mark.parametrize("category", CATEGORIES)
def test_the_verdict_is_that_of_the_package(category: str) -> None:
    """On the solution, and on the solution with a call left out, moved to the front, or repeated."""
    entries = list(load("./backend.py:entries")(category).values())[:12]
    verdicts = {
        ours
        for number, entry in enumerate(entries)
        for at, made in enumerate(variants(entry["gold"]))
        if (ours := own(entry, made)) == theirs(entry, made, f"{number}{at}") or differ(entry, made)
    }
    assert verdicts == {True, False}


def differ(entry: dict[str, Any], made: Rounds) -> bool:
    raise AssertionError(f"{entry['id']}: {own(entry, made)} for {made}")


def variants(gold: Rounds) -> Iterator[Rounds]:
    yield gold
    yield [[] for _ in gold]
    for number, calls in enumerate(gold):
        for at in range(len(calls)):
            yield [each if k != number else [*each[:at], *each[at + 1 :]] for k, each in enumerate(gold)]
            yield [each if k != number else [calls[at], *each] for k, each in enumerate(gold)]


def own(entry: dict[str, Any], made: Rounds) -> bool:
    right: int = load("./backend.py:rounds_right")(entry, entry["gold"], made)
    return right == len(entry["gold"])


def theirs(entry: dict[str, Any], made: Rounds, unique: str) -> bool:
    checker = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker")
    written = [[[written_out(call)] for call in calls] for calls in made]
    gold = [[written_out(call) for call in calls] for calls in entry["gold"]]
    found = checker.multi_turn_checker(written, gold, copy.deepcopy(entry), "multi_turn", f"test{unique}")
    return bool(found["valid"])


def written_out(call: Any) -> str:
    name, arguments = call
    return f"{name}({', '.join(f'{argument}={value!r}' for argument, value in arguments.items())})"


@pytest.mark.slow
@needs_bfcl
def test_scenarios_are_held_out_in_all_categories_at_once() -> None:
    number = {task.id.rpartition("_")[2] for task in tasks()}
    held_out = list(load("./task.py:conversations")(held_out=True))
    assert len(tasks()) + len(held_out) == 800
    assert number.isdisjoint(task.id.rpartition("_")[2] for task in held_out)


@needs_bfcl
def test_a_short_split_has_few_functions_and_no_task_without_calls() -> None:
    short = list(load("./task.py:conversations")(rounds=1, others=2))
    assert 500 < len(short) < 700
    for task in short:
        (calls,) = task.data["gold"]
        offered = [each["name"] for each in task.tools or [] if isinstance(each, dict)]
        assert {name for name, _ in calls} <= {*offered} or task.id == "multi_turn_miss_func_49"
        assert len(offered) <= len({name for name, _ in calls}) + 2


@needs_bfcl
def test_apis_of_two_episodes_share_nothing() -> None:
    """The package puts credit cards of one dict into every long context; paying with one changed it for all."""
    entries = load("./backend.py:entries")("long_context").values()
    entry = next(each for each in entries if "TravelAPI" in each["involved_classes"])
    make = load("./backend.py:Apis")
    first, second = make(entry), make(entry)
    before = second.key()
    for card in first.instances["TravelAPI"].credit_card_list.values():
        card["balance"] = -1
    assert second.key() == before
    assert make(entry).key() == before


@needs_bfcl
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("power", {"base": 10, "exponent": 10**12}),
        ("square_root", {"number": 2, "precision": 10**12}),
        ("logarithm", {"value": 2, "base": 10, "precision": 10**9}),
        ("round_number", {"number": 5, "decimal_places": -(10**12)}),
    ],
)
def test_arithmetic_that_would_never_end_is_refused(name: str, arguments: dict[str, Any]) -> None:
    entry = {"id": "", "involved_classes": ["MathAPI"], "initial_config": {}}
    with pytest.raises(ToolError, match="too large|must be between"):
        load("./backend.py:Apis")(entry).call(name, arguments)


@needs_bfcl
def test_the_precision_of_the_process_stays() -> None:
    mpmath = importlib.import_module("mpmath")
    before = mpmath.mp.dps
    entry = {"id": "", "involved_classes": ["MathAPI"], "initial_config": {}}
    said = load("./backend.py:Apis")(entry).call("logarithm", {"value": 8, "base": 2, "precision": 40})
    assert "mpf('3.0" in said
    assert mpmath.mp.dps == before


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    load("./backend.py:entries").cache_clear()
    load("./backend.py:_package").cache_clear()
    with pytest.raises(TaskError, match="pip install --no-deps bfcl-eval"):
        next(itertools.chain(load("./task.py:conversations")()))
