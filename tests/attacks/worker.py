"""The driver that is attacked: plays batches, says which promises they broke, and adopts what its children leave.

Usage: `python -m tests.attacks.worker DESCRIPTOR`: a batch per line of standard input, a list of `[ids, what]` per line
to the descriptor.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agentrl.rollouts.faults.stalls import Stall
from tests.attacks.cases import Broken, Case, Family, case_of
from tests.attacks.families import FAMILIES
from tests.attacks.played import Played
from tests.attacks.traces import left_behind
from tests.stalls import stalls_of_ours

MOST_MB = 400
"""Memory that a batch may cost the driver at its peak, MiB."""
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER


_WARM: set[str] = set()


def played(cases: Sequence[Case], folder: Path) -> list[Broken]:
    """The promises that a batch broke while it was played. Its cases are of one family and one place."""
    ids, family = tuple(case.id for case in cases), FAMILIES[cases[0].family]
    if family.name not in _WARM and isinstance(family, Played):
        _WARM.add(family.name)
        family.warm(cases[0].place, folder)
    forget_peak()
    before = peak_mb()
    found, stalls = _watched(family, cases, folder / "first")
    if (cost := peak_mb() - before) > MOST_MB:
        found.append(Broken(ids, f"the driver's memory grew by {cost:.0f} MiB"))
    if stalls and not found:  # what the machine did does not come again
        found, stalls = _watched(family, cases, folder / "again")
    return found + [Broken(ids, f"the event loop stood still: {stall}") for stall in stalls]


def _watched(family: Family, cases: Sequence[Case], folder: Path) -> tuple[list[Broken], list[Stall]]:
    folder.mkdir()
    folder.chmod(0o755)  # users of sandboxes enter it
    with stalls_of_ours() as stalls:
        found = list(family.play(cases, folder))
    return found, stalls


def forget_peak() -> None:
    """Resets the peak memory of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """The peak of this process's memory, MiB."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
    answers = os.fdopen(int(sys.argv[1]), "w")
    for line in sys.stdin:
        given = json.loads(line)
        cases = [case_of(id, given["seed"]) for id in given["cases"]]
        with tempfile.TemporaryDirectory(dir=os.environ["AGENTRL_ATTACKS"], ignore_cleanup_errors=True) as folder:
            os.chmod(folder, 0o755)
            found = played(cases, Path(folder))
        traces = left_behind(Path(tempfile.gettempdir()))
        found += [Broken(tuple(given["cases"]), f"left behind: {trace}") for trace in traces]
        print(json.dumps([[broken.cases, broken.what] for broken in found]), file=answers, flush=True)


if __name__ == "__main__":
    main()
