"""Faults: where they are found, which are drawn, which tests are chosen for them, and whether those notice."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.mutants import __main__ as mutants
from scripts.mutants.mutations import Key, draw, mutations, mutations_of, shares
from scripts.mutants.selection import Choice, Suite
from tests.scripts.conftest import HOUSE

SOURCE = '''\
"""Docs: 1."""
from typing import TYPE_CHECKING, Literal
if TYPE_CHECKING:
    import a

def f(x: Literal[1], items=(), *, n=3):
    """Docs: 2."""
    if x < 1 and not (
        items  # <=
    ):
        items.append(  # kept
            f"{x + 1}")
    for k in range(n):
        yield items[k:n + 1]
    assert 0 <= x or n
    return [y for y in items if y]

async def g(x):
    await x.close()
    match x:
        case int() if x > 2:
            return lambda: 5 if x else "ä"

if __name__ == "__main__":
    f(7)
'''
CONDITION = "x < 1 and not (\n        items  # <=\n    )"


def edits(source: str) -> list[tuple[str, str, str]]:
    return [(one.key.kind, one.key.old, one.key.new) for one in mutations("agentrl/a/b.py", source.encode())]


def test_where_faults_are_found() -> None:
    assert edits(SOURCE) == [
        ("off by one", "3", "4"),
        (
            "negated test",
            "x < 1 and not (\n        items  # <=\n    )",
            "(not (x < 1 and not (\n        items  # <=\n    )))",
        ),
        ("off by one", "<", "<="),
        ("off by one", "1", "2"),
        ("negated test", "and", "or"),
        ("lost call", 'items.append(  # kept\n            f"{x + 1}")', "pass"),
        ("off by one", "n", "(n) + 1"),
        ("off by one", "k", "(k) + 1"),
        ("off by one", "n + 1", "(n + 1) + 1"),
        ("off by one", "1", "2"),
        ("off by one", "0", "1"),
        ("negated test", "0 <= x or n", "(not (0 <= x or n))"),
        ("off by one", "<=", "<"),
        ("negated test", "or", "and"),
        ("negated test", "y", "(not (y))"),
        ("lost call", "await x.close()", "pass"),
        ("negated test", "x > 2", "(not (x > 2))"),
        ("off by one", ">", ">="),
        ("off by one", "2", "3"),
        ("off by one", "5", "6"),
        ("negated test", "x", "(not (x))"),
    ]


def test_a_fault_changes_its_place_only_and_compiles() -> None:
    source = SOURCE.encode()
    for one in mutations("agentrl/a/b.py", source):
        changed = one.applied(source)
        (start, end, text), *_ = one.edits
        assert changed[:start] == source[:start]
        assert changed[start:].startswith(text)
        assert len(changed) - len(source) == sum(len(new) - (to - at) for at, to, new in one.edits), (start, end)


def test_operators_are_found_behind_comments_and_letters_that_are_long() -> None:
    source = 'x = ("ä" or  # or <\n     (b) or (c\n < d))\n'
    assert [one.applied(source.encode()).decode() for one in mutations("agentrl/a.py", source.encode())] == [
        'x = ("ä" and  # or <\n     (b) and (c\n < d))\n',
        'x = ("ä" or  # or <\n     (b) or (c\n <= d))\n',
    ]


def test_lines_and_whether_they_run_at_import() -> None:
    source = "n = 1\nclass A:\n    m = 2\n    def f(self, k=3):\n        return (\n            4)\nz = lambda: 5\n"
    found = [(one.key.old, one.line, [*one.lines], one.at_import) for one in mutations("agentrl/a.py", source.encode())]
    assert found == [
        ("1", 1, [1], True),
        ("2", 3, [3], True),
        ("3", 4, [4], True),
        ("4", 6, [5, 6], False),
        ("5", 7, [7], False),
    ]


def test_a_fault_is_the_same_wherever_its_line_stands() -> None:
    source = "def f(x):\n    if x:\n        return 1\n    return 1\n"
    before = {one.key: one.line for one in mutations("agentrl/a/b.py", source.encode())}
    after = {one.key: one.line for one in mutations("agentrl/a/b.py", ("# more\n\n" + source).encode())}
    assert after == {key: line + 2 for key, line in before.items()}
    assert len(after) == 3  # the two `return 1` are told apart


def test_seats_go_by_weight_and_each_room_has_one() -> None:
    assert shares({"a": 1, "b": 100, "c": 300}, 10) == {"a": 1, "b": 2, "c": 7}


def key(room: str, kind: str, number: int) -> Key:
    return Key(f"agentrl/{room}/x.py", "f", kind, "", str(number), "")


KEYS = [key(room, kind, k) for room in "ab" for kind in ("off by one", "negated test", "lost call") for k in range(50)]


def test_the_draw_is_of_the_seed() -> None:
    weights = {"a": 1, "b": 9}
    drawn = draw(KEYS, weights, 10, 1)
    assert len({*drawn}) == 10
    assert draw(KEYS[::-1], weights, 10, 1) == drawn
    assert draw(KEYS, weights, 10, 2) != drawn
    assert {key.kind for key in drawn if "/b/" in key.path} == {"off by one", "negated test", "lost call"}


def test_the_draw_stays_when_faults_go_that_were_not_drawn() -> None:
    drawn = draw(KEYS, {"a": 1, "b": 9}, 10, 1)
    left = [key for key in KEYS if key in drawn or int(key.old) % 2]
    assert draw(left, {"a": 1, "b": 9}, 10, 1) == drawn


def test_tests_of_the_rooms_that_import_a_file_the_likely_first(house: Path) -> None:
    assert Suite(house, {}).of("agentrl/low/size.py") == [
        "tests/low/test_size.py",
        "tests/wide/test_wide.py",
        "tests/low/test_any.py",
        "tests/high/test_use.py",
    ]


def test_of_tests_that_are_as_likely_the_cheap_come_first(house: Path) -> None:
    tests = Suite(house, {"tests/low/test_any.py::test_any": 3.0, "tests/low/test_size.py::test_small": 1.0})
    assert tests.of("agentrl/low/__init__.py") == ["tests/low/test_size.py", "tests/low/test_any.py"]


def given(house: Path, venv: Path, tmp_path: Path, **more: Any) -> argparse.Namespace:
    plain: dict[str, Any] = {"seed": 1, "count": 3, "checkout": house, "also": [], "suite": "test", "one_suite": True}
    plain |= {"coverage": None, "costs": None, "survivors": False, "only": None, "jobs": 1, "list": False}
    plain |= {"test_seconds": 60, "mutant_seconds": 100, "venv": venv, "work": tmp_path / "work"}
    return argparse.Namespace(out=tmp_path / "out.jsonl", **{**plain, **more})


def tried(house: Path, venv: Path, tmp_path: Path, fault: str, **more: Any) -> dict[str, Any]:
    settings = given(house, venv, tmp_path, **more)
    found = {one.key.new: one for one in mutations_of(house).values()}
    with mutants.copies_of(house, 1, settings.work, venv) as (copy,):
        tests = Suite(house, {})
        bench = mutants.Bench(copy, settings)
        result = bench.try_fault(found[fault], Choice(tuple(tests.of("agentrl/low/size.py")), None))
        assert (copy.root / "agentrl/low/size.py").read_text() == HOUSE["agentrl/low/size.py"]
    assert not [*settings.work.iterdir()]
    return result


@pytest.mark.slow
def test_a_fault_that_a_test_notices_is_killed_by_a_test_that_passes_without(
    house: Path, venv: Path, tmp_path: Path
) -> None:
    """`test_broken` comes first, and fails without the fault too."""
    result = tried(house, venv, tmp_path, "<=")
    assert (result["status"], result["test"]) == ("killed", "tests/low/test_size.py::test_small")
    assert "assert True is False" in result["why"]


@pytest.mark.slow
def test_a_fault_that_no_test_notices_survives(house: Path, venv: Path, tmp_path: Path) -> None:
    result = tried(house, venv, tmp_path, "pass")
    assert (result["status"], result["ran"]) == ("survived", 4)


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_stopped(
    house: Path, venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "ROOT", house)
    mutants.run_all(given(house, venv, tmp_path, count=1))
    first = (tmp_path / "out.jsonl").read_text()
    mutants.run_all(given(house, venv, tmp_path, count=3))
    assert (tmp_path / "out.jsonl").read_text().startswith(first)
    assert "2 of 3 faults to try" in capsys.readouterr().out
    assert [row["status"] for row in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())].count(
        "survived"
    ) == 1


def test_changes_that_are_not_committed_are_refused(
    house: Path, venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutants, "ROOT", house)
    (house / "agentrl/low/size.py").write_text("def small(x):\n    return x < 4\n")
    with pytest.raises(SystemExit, match="commit them"):
        mutants.run_all(given(house, venv, tmp_path, count=1))


def test_how_pytest_ended() -> None:
    ended = mutants.ended_with
    assert ended(0, {"ran": 2}, "f") == mutants.Ended("", "", 2)
    assert ended(1, {"ran": 2, "started": "f::t", "failed": "", "finished": True}, "f").failed == ""
    assert ended(5, {"ran": 0}, "f").failed == ""
    assert ended(1, {"ran": 2, "failed": "f::t", "why": "x"}, "f") == mutants.Ended("f::t", "x", 2)
    assert ended(-11, {"ran": 2, "started": "f::t"}, "f") == mutants.Ended("f::t", "pytest ended with -11", 2)
    assert ended(4, {}, "f").failed == "f"
    assert not ended(None, {"ran": 2}, "f").in_time


def test_the_suites() -> None:
    assert mutants.suites(False, "check") == [("check", "not slow")]
    assert mutants.suites(False, "test") == [("check", "not slow"), ("test", "slow")]
    assert mutants.suites(True, "test") == [("test", "")]


def row(**more: object) -> dict[str, Any]:
    plain = {"id": "1", "room": "a", "path": "agentrl/a/b.py", "line": 3, "kind": "off by one", "old": "1", "new": "2"}
    return {**plain, "status": "killed", "suite": "check", "ran": 7, **more}


def test_the_report() -> None:
    rows = [row(), row(id="2", suite="test"), row(id="3", room="b", status="survived", old="a | b", suite="")]
    assert mutants.report({"now": rows}) == "\n".join(
        [
            "| room | now: faults | now: killed by check | now: killed in all |",
            "| --- | --- | --- | --- |",
            "| a | 2 | 1 | 2 |",
            "| b | 1 | 0 | 0 |",
            "| all | 3 | 1 | 2 |",
            "",
            "Not killed in now:",
            "",
            "| fault | where | what | result |",
            "| --- | --- | --- | --- |",
            "| 3 | agentrl/a/b.py:3 | off by one: `a \\| b` → `2` | survived, 7 tests |",
        ]
    )
