"""The base of experiment trackers: one run of the tracker for each run, with all of its metrics."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.store.info import replace
from agentrl.types.reporter import Metrics, Reporter, RunStart, numbers, source_of

FOLDER = "trackers"


class Tracker(Reporter, ABC):
    """Sends metrics to an experiment tracker.

    A continued run uses the same run of the tracker. Missing lines are sent first: those that could not be sent
    earlier, or all lines if the tracker is new. `RUN/trackers/NAME.json` records what was sent.

    Attributes:
        name: unique among the trackers of a run.
    """

    name = "tracker"
    _id: str | None = None

    @abstractmethod
    def open(self, run: RunStart, id: str | None) -> str:
        """Starts a run of the tracker, or continues the run `id`. Returns its id."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends values, under the names of docs/metrics.md."""

    def close(self, error: BaseException | None) -> None:
        """Ends the run of the tracker."""

    def started(self, run: RunStart) -> None:
        self._file = run.path / FOLDER / f"{self.name}.json"
        known = json.loads(self._file.read_text()) if self._file.exists() else {"id": None, "sent": {}}
        self._sent = {(split, iteration) for split, iterations in known["sent"].items() for iteration in iterations}
        self._waiting: list[Metrics] = list(run.history)
        self._id = self.open(run, known["id"])
        self._save()
        self._send()

    def metrics(self, line: Metrics) -> None:
        self._waiting.append(line)
        self._send()

    def ended(self, error: BaseException | None) -> None:
        if self._id is not None:
            try:
                self._send()
            finally:
                self.close(error)

    def _send(self) -> None:
        while self._waiting and self._id is not None:
            line = self._waiting[0]
            key = (source_of(line).rstrip("/") or "train", int(line.get("iteration", 0)))
            if key not in self._sent:
                self.log(key[1], numbers(line))
                self._sent.add(key)
                self._save()
            del self._waiting[0]

    def _save(self) -> None:
        sent: dict[str, list[int]] = {}
        for split, iteration in sorted(self._sent):
            sent.setdefault(split, []).append(iteration)
        self._file.parent.mkdir(exist_ok=True)
        replace(self._file, json.dumps({"id": self._id, "sent": sent}).encode() + b"\n", durable=False)


def forget(run: Path) -> None:
    """Deletes the records of what was sent: the trackers will start new runs."""
    for file in (run / FOLDER).glob("*.json"):
        file.unlink()


def flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A recipe as flat keys (`train.lr: 1e-5`), for trackers without nested settings."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return found
