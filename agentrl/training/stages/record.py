"""The part of a stage in the shared run directory: its episodes, metrics and checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.config.recipe import RlStage, TrainSection
from agentrl.store.run_dir import RunDir
from agentrl.store.tokens import TokenRecord
from agentrl.training import checkpoint
from agentrl.training.stages.stage import Stage
from agentrl.training.stages.stopping import missing
from agentrl.types.episode import Episode
from agentrl.types.reporter import UNNAMED

_log = logging.getLogger(__name__)

Pins = dict[str, str | None]
"""Checkpoints that a stage depends on, by purpose. They are not deleted while it trains."""


class StageRecord:
    """The records of one stage.

    Attributes:
        pins: `base`: the weights below the adapters; `reference`: the policy that the stage started from. None: not
            needed, or the recipe's model.
        selves: checkpoints that play as earlier selves.
        best: the best checkpoint of each stage with `train.keep.best`, by its name. They are never deleted.
    """

    def __init__(self, run: RunDir, stage: Stage) -> None:
        self.run, self.stage = run, stage
        self.checkpoints = run.path / "checkpoints"
        self.pins: Pins = {"base": None, "reference": None}
        self.selves: set[str] = set()
        self.best: dict[str, str] = {}
        # This object alone writes lines of the stage: the file is read once.
        self._lines = [line for line in run.metrics() if line.get("stage", UNNAMED) == stage.name]

    def episodes(self, iteration: int, split: str) -> Iterator[Episode]:
        """The stage's episodes of an iteration."""
        return self.run.episodes(iteration=iteration, split=split, prefix=self.stage.prefix)

    def group(self, id: str) -> list[Episode]:
        """The episodes of a group, by id."""
        rows = self.run.rows(group_id=id, order="id")
        return list(self.run.episodes([row.id for row in rows]))

    def lines(self, until: int) -> list[dict[str, Any]]:
        """The stage's lines of metrics up to an iteration. After a kill the file may contain later lines."""
        return [line for line in self._lines if line["iteration"] <= until]

    def has_line(self, split: str, iteration: int) -> bool:
        """Returns True if the stage has a metrics line of the split and iteration."""
        return any((line["split"], line["iteration"]) == (split, iteration) for line in self._lines)

    def add_line(self, line: dict[str, Any]) -> dict[str, Any]:
        """Adds a line, unless a run that was killed before its next checkpoint has written it already. Returns the line
        with the name of the stage."""
        line = {"stage": self.stage.name, **line}
        if not self.has_line(line["split"], line["iteration"]):
            self._look_for_what_stops(line)
            self.run.add_metrics(line)
            self._lines.append(line)
        return line

    def add_tokens(self, iteration: int, records: Sequence[TokenRecord]) -> None:
        """Stores numbers of the tokens of some groups, under the iteration of the line of metrics."""
        self.run.add_tokens(self.stage.name, iteration, records)

    def _look_for_what_stops(self, line: dict[str, Any]) -> None:
        """Warns if the first line of its kind lacks the metric that the stop rule reads: it may be misspelt."""
        settings = self.stage.settings
        rule = self.stage.recipe.train if isinstance(settings, RlStage) else settings
        stop = None if rule is None else rule.stop
        first = all(each["split"] != line["split"] for each in self._lines)
        if stop is not None and first and (why := missing(stop, line)) is not None:
            _log.warning("stage %s: %s", self.stage.name, why)

    def folder(self, step: int) -> Path:
        """The checkpoint folder of a step."""
        return self.checkpoints / self.stage.checkpoint(step)

    def state(self, step: int, **more: Any) -> dict[str, Any]:
        """The metadata of a checkpoint, as JSON values."""
        lora = self.stage.optimiser.lora
        return {
            "stage": self.stage.name,
            "iteration": step,
            "pins": self.pins,
            "best": self.best,
            "lora": None if lora is None else lora.model_dump(mode="json"),
            **more,
        }

    def prune(self) -> None:
        """Removes old checkpoints that are not needed."""
        pinned = {name for name in (*self.pins.values(), *self.best.values()) if name} | self.selves
        train = self.stage.recipe.train or TrainSection()
        checkpoint.prune(self.checkpoints, keep=train.keep.last, pinned=pinned)
