"""Weights & Biases. Offline unless the recipe or `WANDB_MODE` selects another mode: files in `RUN/wandb` for `wandb
sync`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from agentrl.config.sections import Section
from agentrl.reporters.tracker import Tracker
from agentrl.types.errors import needs
from agentrl.types.reporter import RunStart


class WandBSettings(Section):
    """Settings of the W&B tracker."""

    project: str | None = Field(None, description="Default: the recipe's name.")
    entity: str | None = Field(None, description="A user or a team; default: the one that is logged in.")
    group: str | None = None
    tags: list[str] = []
    mode: Literal["online", "offline"] | None = Field(None, description="Default: WANDB_MODE, and without it offline.")


class WandB(Tracker):
    """Metrics by iteration, and the recipe as the run's config."""

    def __init__(self, settings: WandBSettings) -> None:
        self.settings = settings
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # a run sends data only to the tracker
        with needs("wandb"):
            import wandb
        self._wandb = wandb

    def open(self, run: RunStart, id: str | None) -> str:
        settings = self.settings
        mode: Any = settings.mode or os.environ.get("WANDB_MODE") or "offline"
        self._run = self._wandb.init(
            id=id or run.id,
            resume="allow",
            project=settings.project or run.name,
            entity=settings.entity,
            group=settings.group,
            tags=settings.tags,
            name=run.path.name,
            job_type=run.command,
            config=dict(run.recipe),
            dir=str(run.path),
            mode=mode,
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        # Not wandb's own step, which must not decrease: a background evaluation ends late.
        self._run.define_metric("*", step_metric="iteration")
        return str(self._run.id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "iteration": step})

    def close(self, error: BaseException | None) -> None:
        self._run.finish(exit_code=0 if error is None else 1)
