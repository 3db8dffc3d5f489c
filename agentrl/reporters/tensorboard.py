"""TensorBoard: event files in `RUN/tensorboard`, which `tensorboard --logdir runs` shows for all runs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from agentrl.reporters.tracker import Tracker
from agentrl.types.errors import needs
from agentrl.types.reporter import RunStart


class TensorBoard(Tracker):
    """Scalars, and the recipe as a text."""

    def __init__(self) -> None:
        # Not torch.utils.tensorboard: a rollout needs no torch.
        with needs("tensorboard"):
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.text.summary_v2 import text_pb
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        self._event, self._summary, self._text, self._writer_at = (
            event_pb2.Event, summary_pb2.Summary, text_pb, EventFileWriter,
        )  # fmt: skip

    def open(self, run: RunStart, id: str | None) -> str:
        self._writer = self._writer_at(str(run.path / "tensorboard"))
        if id is None:
            recipe = json.dumps(run.recipe, indent=1).replace("\n", "\n    ")
            self._add(0, self._text("recipe", f"    {recipe}"))
        return "tensorboard"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, self._summary(value=scalars))

    def close(self, error: BaseException | None) -> None:
        self._writer.close()

    def _add(self, step: int, summary: Any) -> None:
        self._writer.add_event(self._event(step=step, wall_time=time.time(), summary=summary))
        self._writer.flush()
