"""A stage's part of the run directory that all stages share: its episodes, lines of metrics and checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.config.recipe import RlStage
from agentrl.store.run_dir import RunDir
from agentrl.train import checkpoint
from agentrl.train.stages.stage import Stage
from agentrl.train.stages.stopping import missing
from agentrl.types.episode import Episode
from agentrl.types.reporter import UNNAMED

_log = logging.getLogger(__name__)

Pins = dict[str, str | None]
"""Checkpoints that a stage rests on, by what it needs them for: kept as long as it trains."""


class StageRecord:
    """What a stage reads and writes, apart from that of other stages.

    Attributes:
        pins: `base`, whose weights the adapters are put on; `reference`, the policy that the stage began with. None: it
            needs none, or that is the recipe's model.
    """

    def __init__(self, run: RunDir, stage: Stage) -> None:
        self.run, self.stage = run, stage
        self.checkpoints = run.path / "checkpoints"
        self.pins: Pins = {"base": None, "reference": None}
        # Nobody else writes lines of the stage: the file is read once.
        self._lines = [line for line in run.metrics() if line.get("stage", UNNAMED) == stage.name]

    def episodes(self, iteration: int, split: str) -> Iterator[Episode]:
        """The stage's episodes of an iteration."""
        return self.run.episodes(iteration=iteration, split=split, prefix=self.stage.prefix)

    def group(self, id: str) -> list[Episode]:
        """The episodes of a group, by id."""
        rows = self.run.rows(group_id=id, order="id")
        return list(self.run.episodes([row.id for row in rows]))

    def lines(self, until: int) -> list[dict[str, Any]]:
        """The stage's lines of metrics up to an iteration. After a kill there may be later ones already."""
        return [line for line in self._lines if line["iteration"] <= until]

    def has_line(self, split: str, iteration: int) -> bool:
        """Whether there is such a line."""
        return any((line["split"], line["iteration"]) == (split, iteration) for line in self._lines)

    def add_line(self, line: dict[str, Any]) -> dict[str, Any]:
        """Adds a line unless a run that was killed before its next checkpoint has already written it; returns it with
        the name of the stage."""
        line = {"stage": self.stage.name, **line}
        if not self.has_line(line["split"], line["iteration"]):
            self._look_for_what_stops(line)
            self.run.add_metrics(line)
            self._lines.append(line)
        return line

    def _look_for_what_stops(self, line: dict[str, Any]) -> None:
        """Warns if the first line of its kind lacks the metric that the stop rule reads: it may be misspelt."""
        settings = self.stage.settings
        rule = self.stage.recipe.train if isinstance(settings, RlStage) else settings
        stop = None if rule is None else rule.stop
        first = all(each["split"] != line["split"] for each in self._lines)
        if stop is not None and first and (why := missing(stop, line)) is not None:
            _log.warning("stage %s: %s", self.stage.name, why)

    def folder(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.checkpoints / self.stage.checkpoint(step)

    def state(self, step: int, **more: Any) -> dict[str, Any]:
        """What a checkpoint says about itself, as JSON values."""
        lora = self.stage.optimiser.lora
        return {
            "stage": self.stage.name,
            "iteration": step,
            "pins": self.pins,
            "lora": None if lora is None else lora.model_dump(mode="json"),
            **more,
        }

    def prune(self) -> None:
        """Removes old checkpoints but for those that are needed."""
        checkpoint.prune(self.checkpoints, keep=2, pinned=[name for name in self.pins.values() if name])
