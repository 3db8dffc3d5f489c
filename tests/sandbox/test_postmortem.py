"""Who is to blame for a silent sandbox."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agentrl.sandbox.toolbox import postmortem
from agentrl.sandbox.toolbox.postmortem import Postmortem
from agentrl.sandbox.toolbox.wire import Wire


class Counts:
    """The counts of a control group, as they are at each look."""

    def __init__(self, full: Sequence[bool], kills: Sequence[int]) -> None:
        self._full, self._kills = iter(full), iter(kills)

    def is_full(self) -> bool:
        return next(self._full)

    def oom_kills(self) -> int:
        return next(self._kills)

    def cpu_s(self) -> float | None:
        return None


class Busy(Counts):
    """The programs of the group take so much processor time while it is looked."""

    def __init__(self, taken: float) -> None:
        super().__init__([False] * 6, [0] * 7)
        self._taken = iter([10.0, 10.0 + taken])

    def cpu_s(self) -> float | None:
        return next(self._taken)


@pytest.mark.parametrize(
    ("taken", "own", "blamed"),
    [
        (6.0, [0.02, 0.05], True),  # many programs, and the toolbox among them
        (6.0, [0.02, 0.9], False),  # it has its share, and is silent for another reason
        (0.3, [0.02, 0.02], False),  # nobody runs: the machine has no time for any of them
        (6.0, [0.02, None], False),  # stopped from outside, or it sleeps
        (6.0, [None, None], False),
    ],
)
async def test_programs_that_starve_their_toolbox_are_to_blame(
    taken: float, own: list[float | None], blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter(own)

    def waits(pid: int, used_s: float) -> float | None:
        found = next(seen)
        return None if found is None else found - used_s

    monkeypatch.setattr(postmortem, "_waits_since", waits)
    monkeypatch.setattr(postmortem, "_exertion", lambda pid: 5)
    monkeypatch.setattr(postmortem, "_LOOK_S", 0.0)
    group: Any = Busy(taken)
    assert bool(await Postmortem(group, 1)._look(silent=True)) is blamed


@pytest.mark.parametrize(
    ("exertion", "full", "kills", "blamed"),
    [
        ([5, 9], [True], [0], True),
        ([5, 5, 5, 9], [True, True, False], [0, 0, 0, 0], True),  # the machine was busy: it ran late
        ([5, 5, 5, 5, 5, 5, 9], [True] + [False] * 5, [0] * 7, False),  # full long before it ran
        ([5, 9, 9], [False, False], [2, 2, 3], True),  # each kill makes room for a moment
        ([5] * 7, [True] * 6, [0] * 7, False),  # frozen
        (range(7), [False] * 6, [2] * 7, False),  # it runs, and its programs have memory
    ],
)
async def test_a_silent_toolbox(
    exertion: Sequence[int], full: Sequence[bool], kills: Sequence[int], blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = itertools.chain(exertion, itertools.repeat(list(exertion)[-1]))
    monkeypatch.setattr(postmortem, "_exertion", lambda pid: next(found))
    monkeypatch.setattr(postmortem, "_LOOK_S", 0.0)
    group: Any = Counts(full, kills)
    assert bool(await Postmortem(group, 1)._look(silent=True)) is blamed


@pytest.mark.parametrize(
    ("own", "child", "blamed"),
    [
        (("D", "100"), [("T", "100")], True),
        (("D", "100"), [("R", "100"), ("T", "100")], True),
        (("D", "100"), [("T", "90")], False),  # a program, which has memory of its own
        (("D", "100"), [("R", "100")], False),  # the machine is slow
        (("D", "100"), [], False),  # it waits for a disk
        (("T", "100"), [("T", "100")], False),  # both were stopped, or it alone: from outside
        (("S", "100"), [("T", "100")], False),
        (("D", "100"), [("D", "100")], False),  # frozen
    ],
)
async def test_who_stops_what_a_toolbox_is_about_to_start_is_to_blame(
    own: tuple[str, str], child: list[tuple[str, str]], blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = dict(enumerate([own, *child], 1))
    monkeypatch.setattr(postmortem, "_stat", lambda pid: [told[pid][0], *["0"] * 19, told[pid][1]])
    monkeypatch.setattr(postmortem, "_children", lambda pid: [*told][1:])
    monkeypatch.setattr(postmortem, "_LOOK_S", 0.0)
    assert bool(await Postmortem(None, 1)._look(silent=True)) is blamed


class Removed:
    """The group of a container: the engine removes it with the container. It counts kills until then."""

    def __init__(self, kills: int) -> None:
        self._kills = iter([kills])

    def oom_kills(self) -> int | None:
        return next(self._kills, None)


@pytest.mark.parametrize(
    ("kills", "reported", "blamed"),
    [
        (0, True, True),
        (0, False, False),  # killed from outside
        (1, True, False),  # the report may be of the kill that the toolbox survived
    ],
)
async def test_a_container_that_is_gone_died_of_memory_if_its_engine_knows_of_one_kill(
    kills: int, reported: bool, blamed: bool
) -> None:
    async def killed_for_memory() -> bool:
        return reported

    group: Any = Removed(kills)
    wire = Wire("w")
    Postmortem(group, 1, killed_for_memory).attach(wire)
    wire.heard()
    assert wire.postmortem is not None
    assert bool(await wire.postmortem(False)) is blamed


def show(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]) -> None:
    """Makes files of /proc those of the mapping; others do not exist."""

    def opened(path: str, **settings: object) -> io.StringIO:
        if path not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[path])

    monkeypatch.setattr(postmortem, "open", opened, raising=False)
    monkeypatch.setattr(postmortem, "_LOOK_S", 0.0)


def stat_of(state: str, ticks: int = 0, size: int = 100) -> str:
    """A line of proc(5); half of the ticks of processor time are the program's own, half are the kernel's."""
    fields = [state, *["0"] * 10, str(ticks // 2), str(ticks - ticks // 2), *["0"] * 7, str(size)]
    return f"7 (a (pro) gram) {' '.join(fields)} 0 0\n"


@pytest.mark.parametrize(
    ("children", "blamed"),
    [("8 9 \n", True), ("8 \n", False), ("8 404 \n", False), (None, False)],
)
async def test_a_stopped_child_is_found_among_those_of_the_toolbox(
    children: str | None, blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"/proc/7/stat": stat_of("D"), "/proc/8/stat": stat_of("S"), "/proc/9/stat": stat_of("T")}
    if children is not None:  # else the kernel does not list them
        files["/proc/7/task/7/children"] = children
    show(monkeypatch, files)
    assert bool(await Postmortem(None, 7)._look(silent=True)) is blamed


@pytest.mark.parametrize(
    ("stat", "blamed"),
    [
        (stat_of("R", ticks=5), True),  # it waits for a processor, and has not got any of what the programs took
        (stat_of("S", ticks=5), False),
        (None, False),  # it has ended
    ],
)
async def test_the_time_of_a_starved_toolbox_is_the_kernels(
    stat: str | None, blamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, {} if stat is None else {"/proc/7/stat": stat})
    group: Any = Busy(6.0)
    assert bool(await Postmortem(group, 7)._look(silent=True)) is blamed


def test_what_a_process_took_is_counted_from_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, {"/proc/7/stat": stat_of("R", ticks=3 * postmortem._TICKS), "/proc/8/stat": stat_of("T")})
    assert postmortem._waits_since(7, 1.0) == 2.0
    assert postmortem._waits_since(8, 0.0) is None, "it is stopped, and waits for nothing"
    assert postmortem._waits_since(9, 0.0) is None
