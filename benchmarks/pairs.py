"""Two arms in pairs of seeds: the mean difference, its interval and a verdict; and a record of the runs."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.harness import ROOT, Row

STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
)  # fmt: skip
"""Quantiles .975 of Student's t of 1, 2, ... degrees of freedom; the last also stands for more, a little too wide."""
AGREE = 7 / 8
"""The share of pairs that agree, at least, where a method is called better or worse."""


class Pairs(Row, tag=True):
    """A method beside another one, seed by seed.

    Attributes:
        differences: the method's value minus the other's, of each seed that neither failed.
        half_width: of the 95 % interval of `mean`, by Student's t over the pairs.
        verdict: "better" or "worse" if the interval excludes 0 and at least 7 of 8 pairs agree.
    """

    method: str
    against: str
    differences: list[float]
    mean: float
    half_width: float
    won: int
    verdict: str


def compare(method: str, against: str, values: Sequence[tuple[float, float]]) -> Pairs:
    """Compares the values of a method with those of another one; a pair for each seed."""
    differences = [one - other for one, other in values]
    mean, half = interval(differences)
    won = sum(difference > 0 for difference in differences)
    lost = sum(difference < 0 for difference in differences)
    agree = AGREE * len(differences)
    verdict = "better" if mean - half > 0 and won >= agree else "worse" if mean + half < 0 and lost >= agree else ""
    rounded = [round(difference, 3) for difference in differences]
    return Pairs(
        method=method,
        against=against,
        differences=rounded,
        mean=round(mean, 4),
        half_width=round(half, 4),
        won=won,
        verdict=verdict or "no difference seen",
    )


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The mean and the half-width of its 95 % interval, by Student's t; 0 of fewer than two differences."""
    if len(differences) < 2:
        return sum(differences), 0.0
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    quantile = STUDENT[min(len(differences) - 1, len(STUDENT)) - 1]
    return statistics.mean(differences), quantile * error


def table(pairs: Sequence[Pairs], what: str = "credit") -> Table:
    """A line for each method."""
    out = Table(what, "against", "mean difference (95 %)", "pairs won", "each pair", "verdict")
    for pair in pairs:
        mean, won = f"{pair.mean:+.3f} ± {pair.half_width:.3f}", f"{pair.won} of {len(pair.differences)}"
        each = " ".join(f"{difference:+.2f}" for difference in pair.differences)
        out.add_row(pair.method, pair.against, mean, won, each, pair.verdict)
    return out


class Record:
    """Finished runs, as lines of JSON, each with the commit that ran it. A run of another commit counts as finished.

    Args:
        path: the file; None: they are kept in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._adding = path, threading.Lock()
        self._runs: list[dict[str, Any]] = []
        if path is None:
            return
        asked = ["git", "rev-parse", "--short=12", "HEAD"]
        self._commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        path.parent.mkdir(parents=True, exist_ok=True)
        held = path.read_text() if path.exists() else ""
        if held and not held.endswith("\n"):  # the last line of a run that was killed
            path.write_text(held + "\n")
        for line in held.splitlines():
            with contextlib.suppress(ValueError):
                self._runs.append(json.loads(line))

    def find(self, **key: Any) -> dict[str, Any] | None:
        """Returns the run that has exactly these values; None: it is not recorded."""
        return next((run for run in self._runs if all(run.get(name) == value for name, value in key.items())), None)

    def add(self, **run: Any) -> None:
        """Adds a finished run."""
        with self._adding:
            self._runs.append(run)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps({**run, "commit": self._commit}) + "\n")
