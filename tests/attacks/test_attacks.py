"""The suite of attacks: its draws, what it says of a driver that dies, and that it notices a defence that is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from agentrl.types.episode import Episode, ErrorRecord
from agentrl.types.task import Task
from tests.attacks import traces
from tests.attacks.cases import DOCKER, DRIVER, NAMESPACE, Broken, Case, batches, case_of
from tests.attacks.driver import Driver
from tests.attacks.families import FAMILIES
from tests.attacks.families.archives import stream, tree
from tests.attacks.families.queries import query
from tests.attacks.played import Attack, Played, _wrong
from tests.attacks.worker import played
from tests.command import python
from tests.stalls import stalls_of_ours
from tests.types.test_completions import LIES
from tests.waiting import running_program

PLAYED = [family for family in FAMILIES.values() if isinstance(family, Played)]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_each_listed_case_comes_once_and_drawn_ones_differ(family: Any) -> None:
    listed = family.listed()
    assert len(set(listed)) == len(listed)
    assert not any(name.isdecimal() for name in listed)
    played = [case for batch in islice(batches(family, family.places[0], 5), len(listed) + 3) for case in batch]
    assert len({case.id for case in played}) == len(played)
    assert {case.name for case in played if not case.drawn} == set(listed)
    assert any(case.drawn for case in played) == family.draws
    assert all(case_of(case.id, 5) == case for case in played)


@pytest.mark.parametrize("family", PLAYED, ids=[family.name for family in PLAYED])
def test_a_seed_draws_the_same_everywhere(family: Played) -> None:
    def attacks(seed: int, place: str) -> list[Attack]:
        names = [*map(str, range(8)), *family.listed()[:3]]
        return [family.attack(Case(seed, place, family.name, name)) for name in names]

    assert repr(attacks(3, NAMESPACE)) == repr(attacks(3, DOCKER)) != repr(attacks(4, NAMESPACE))


@pytest.mark.parametrize("draw", [stream, tree, query])
def test_a_seed_draws_the_same_things(draw: Callable[[Any], Any]) -> None:
    cases = [Case(seed, DRIVER, "x", str(number)) for seed in (1, 2) for number in range(30)]
    drawn = [draw(case.random()) for case in cases]
    assert drawn == [draw(case.random()) for case in cases]
    assert len({*drawn}) > 50


def test_what_is_wrong_with_an_episode() -> None:
    def wrong(earns: float, *, honest: bool = False, **fields: Any) -> str:
        made = {"components": {"c": fields.get("reward")}, **fields}
        return _wrong(
            Episode(id="e", group_id="e", task=Task.of("t", ""), **{"status": "done", **made}), earns, honest=honest
        )

    assert wrong(0.0, reward=0.0) == wrong(1.0, reward=0.5) == wrong(1.0, reward=1.0, honest=True) == ""
    assert wrong(0.0, reward=0.0, status="truncated") == ""
    assert "0.5, where 0.0 was earned" in wrong(0.0, reward=0.5)
    assert "an honest neighbour has the reward 0.0" in wrong(1.0, reward=0.0, honest=True)
    assert "the reward None" in wrong(0.0, reward=None)
    error = ErrorRecord(kind="SandboxLost", message="gone", stage="tools")
    assert "infra_error" in wrong(0.0, reward=None, status="infra_error", error=error)
    assert "the components" in wrong(0.0, reward=0.0, components={"c": None})
    assert _wrong(None, 0.0, honest=False) == "its episode is not stored"


# A driver that dies

DIES = "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 11)"
HANGS = "import signal, sys; sys.stdin.readline(); signal.pause()"
ANSWERS = 'import os, sys\nfor line in sys.stdin: os.write(int(sys.argv[1]), b\'[[["driver/x/1"], "broke"]]\\n\')'
CASE = Case(1, DRIVER, "x", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "told"),
    [
        (DIES, "the driver was killed by SIGSEGV"),
        ("exit(3)", "the driver exited with 3"),
        (HANGS, "the driver hangs"),
        (ANSWERS, "broke"),
    ],
)
def test_what_is_said_of_a_driver(tmp_path: Path, code: str, told: str) -> None:
    with Driver(tmp_path, [sys.executable, "-c", code], batch_s=1.0 if code == HANGS else 600.0) as driver:
        for _ in range(2):  # after a death by another one
            (broken,) = driver.play([CASE])
            assert broken.cases == (CASE.id,)
            assert told in broken.what


@pytest.mark.slow
def test_what_is_left_behind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_ENDING_S", 0.0)
    before = traces.left_behind(tmp_path)
    (tmp_path / "left").touch()
    with running_program(["sh", "-c", "echo; read _", "98751"], stdin=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()  # before a program's first step its command line may be empty
        found = {*traces.left_behind(tmp_path)} - {*before}
    assert any("98751" in trace for trace in found), found
    assert f"file {tmp_path / 'left'}" in found


@pytest.mark.slow
def test_the_last_line_is_a_summary(tmp_path: Path) -> None:
    done = python(
        "-m",
        "tests.attacks",
        "--seed",
        "5",
        "--case",
        "driver/numbers/0",
        "--case",
        "driver/replies/hermes 0",
        cwd=Path.cwd(),
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["played"] == {"driver": {"numbers": 1, "replies": 1}}
    assert (told["seed"], told["cases"], told["broken"], told["missing"]) == (5, 2, [], {})


# Defences that are gone: how, a case that must break, and what is said of it

GONE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, str]] = {}


def gone(case: str, told: str) -> Callable[[Callable[[pytest.MonkeyPatch], None]], None]:
    def register(patch: Callable[[pytest.MonkeyPatch], None]) -> None:
        GONE[patch.__name__] = patch, case, told

    return register


@gone("namespace/verdicts/a large number", "where 0.0 was earned")
def bound_on_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.integrations.harbor.verifier.MOST", 1e9)


@gone("namespace/code/equal to everything, statements", "has the reward 1.0")
def comparisons_by_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES["code"].recipe["rewards"]["whole"], "trust_operators", True)  # type: ignore[attr-defined]


@gone("namespace/calls/sum 1", "the event loop stood still")
def work_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.tools.builtin.calculator._value", lambda node: sum(range(90_000_000)))


@gone("namespace/network/none, loopback 0", "it reached")
def own_network(monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl.sandbox.namespace import rootfs

    monkeypatch.setattr(rootfs, "_NAMESPACES", tuple(word for word in rootfs._NAMESPACES if word != "--unshare-net"))


@gone(f"driver/completions/lie {[told for _, told in LIES].index('the token -5')}", "is taken")
def check_of_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.types.engine._faults", lambda given: iter(()))


@gone("driver/numbers/json 0", "RecursionError")
def bound_on_nesting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.integrations.harbor.verifier._parsed", lambda text, read: read(text))


@pytest.mark.slow
@pytest.mark.parametrize("defence", GONE)
def test_a_defence_that_is_gone_is_noticed(public_folder: Path, monkeypatch: pytest.MonkeyPatch, defence: str) -> None:
    patch, id, told = GONE[defence]
    patch(monkeypatch)
    with stalls_of_ours():  # of the rounds before the case that must break
        found: list[Broken] = played([case_of(id, 1)], public_folder)
    assert any(told in broken.what for broken in found), found
