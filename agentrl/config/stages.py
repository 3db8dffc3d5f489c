"""The sections of a stage that trains on what is there from the start: supervised, and on preferences."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from agentrl.config.sections import MAY_CHANGE, Section, Short, alone
from agentrl.config.tasks import TaskSettings
from agentrl.config.train import LrSchedule, OptimiserSettings, PreferenceLossSettings


class StopSettings(Section):
    """When a stage ends before its last step: at a threshold, or when nothing has improved for a while."""

    metric: str = Field(description="Of the stage's lines in metrics.jsonl; eval/NAME: of its evaluations.")
    at_least: float | None = Field(None, description="Stop when it is this or more.")
    at_most: float | None = Field(None, description="Stop when it is this or less.")
    patience: int | None = Field(None, gt=0, description="Stop after so many lines in a row that are no better.")
    better: Literal["higher", "lower"] = Field("higher", description="With patience: what better means.")
    window: int = Field(1, gt=0, description="Of so many lines the mean counts.")

    @model_validator(mode="after")
    def _stops(self) -> Self:
        if self.at_least is None and self.at_most is None and self.patience is None:
            raise ValueError("give at_least, at_most or patience")
        return self


class OfflineStage(Section):
    """What supervised and preference stages have in common."""

    steps: int | None = Field(None, gt=0, description="Optimiser steps; default: as many as `epochs` comes to.")
    epochs: float | None = Field(None, gt=0, description="Passes over the data, in place of steps; default: 1.")
    batch: int = Field(16, gt=0, description="Episodes (of preferences: pairs) a step.")
    lr: float = Field(1e-5, gt=0, description="Peak learning rate; it rises to that over the first 20th of the steps.")
    lr_schedule: LrSchedule = Field("linear", description="How the rate goes on: constant, or down to 0.")
    metrics_every: Annotated[int, MAY_CHANGE] = Field(10, gt=0, description="Steps of a line in metrics.jsonl.")
    checkpoint_every: Annotated[int, MAY_CHANGE] = Field(100, gt=0, description="Steps between checkpoints.")
    stop: Annotated[StopSettings | None, MAY_CHANGE] = Field(None, description="When to end before the last step.")
    train: OptimiserSettings = Field(
        default_factory=OptimiserSettings, description="What differs from the recipe's `train`."
    )

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Self:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs")
        return self

    def steps_over(self, samples: int) -> int:
        """How many steps a stage with so many episodes (or pairs) takes."""
        return self.steps or max(1, math.ceil((self.epochs or 1) * samples / self.batch))


class SftStage(OfflineStage, Short):
    """Supervised training on exactly one of `script`, `jsonl` and `run`."""

    script: str | None = Field(None, description="Name of a script (under `scripts`) that demonstrates.")
    episodes: int = Field(256, gt=0, description="With script: demonstrations to collect.")
    tasks: TaskSettings | None = Field(None, description="With script: of these tasks; default: the recipe's.")
    jsonl: str | None = Field(None, description="Conversations: a JSON object per line (docs/stages.md).")
    run: str | None = Field(None, description="Episodes: the name of an earlier stage, or a run directory.")
    min_reward: float | None = Field(None, description="With run: only episodes that earned so much.")

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A name alone is the script."""
        return alone(value, "script")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _exactly_one(self, "script", "jsonl", "run")
        _only_with(self, "script", "episodes", "tasks")
        _only_with(self, "run", "min_reward")
        return self


class PreferenceStage(OfflineStage):
    """Training on preferences, from exactly one of `jsonl` and `run`."""

    jsonl: str | None = Field(None, description="Chosen and rejected replies: a JSON object per line (docs/stages.md).")
    run: str | None = Field(
        None, description="The name of an earlier stage, or a run directory: of each group its best against its worst."
    )
    min_gap: float = Field(1e-6, gt=0, description="With run: pairs whose rewards differ by less are left out.")
    threshold: float | None = Field(
        None, description="With run and the loss kto: in place of pairs all episodes, good if they earned so much."
    )
    loss: PreferenceLossSettings = Field(
        default_factory=PreferenceLossSettings, description="A name, or {use: NAME, ...} with its settings."
    )
    lr: float = Field(1e-6, gt=0, description="Peak learning rate; it rises to that over the first 20th of the steps.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _exactly_one(self, "jsonl", "run")
        _only_with(self, "run", "min_gap", "threshold")
        return self


def _exactly_one(section: Section, *keys: str) -> None:
    given = [key for key in keys if getattr(section, key) is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of {', '.join(keys)}" + (f", found {' and '.join(given)}" if given else ""))


def _only_with(section: Section, key: str, *others: str) -> None:
    """Raises if a key is given that counts only with another one."""
    fields = type(section).model_fields
    for other in others:
        if getattr(section, key) is None and getattr(section, other) != fields[other].default:
            raise ValueError(f"{other!r} goes with {key!r}")
