"""The sections of offline stages: supervised training, and training on preferences."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from agentrl.config.credit import CreditSettings
from agentrl.config.sections import IS_FILE, MAY_CHANGE, NAMES_FILE, Section, Short, alone, misplaced
from agentrl.config.tasks import ROWS, TaskSettings
from agentrl.config.train import ImitationLossSettings, LrSchedule, OptimiserSettings, PreferenceLossSettings


class StopSettings(Section):
    """A rule that ends a stage before its last step: at a threshold, or when the metric stops improving."""

    metric: str = Field(
        description="A metric of the stage in metrics.jsonl, or a reward component; eval/NAME: of its evaluations."
    )
    at_least: float | None = Field(None, description="Stop when the metric is at least this.")
    at_most: float | None = Field(None, description="Stop when the metric is at most this.")
    patience: int | None = Field(None, gt=0, description="Stop after this many lines in a row without improvement.")
    better: Literal["higher", "lower"] = Field("higher", description="With patience: the direction of improvement.")
    window: int = Field(1, gt=0, description="Use the mean over this many lines.")

    @model_validator(mode="after")
    def _stops(self) -> Self:
        if self.at_least is None and self.at_most is None and self.patience is None:
            raise ValueError("give at_least, at_most or patience")
        return self

    @property
    def evaluates(self) -> bool:
        """True if it reads evaluations."""
        return self.metric.startswith("eval/")


class OfflineStage(Section):
    """Settings that supervised and preference stages share."""

    steps: int | None = Field(None, gt=0, description="Optimiser steps; default: computed from `epochs`.")
    epochs: float | None = Field(None, gt=0, description="Passes over the data, instead of steps; default: 1.")
    batch: int = Field(16, gt=0, description="Episodes per step (preferences: pairs).")
    lr: float = Field(1e-5, gt=0, description="Peak learning rate, after a warm-up over the first 20th of the steps.")
    lr_schedule: LrSchedule = Field("linear", description="Learning rate after the warm-up: constant, or down to 0.")
    metrics_every: Annotated[int, MAY_CHANGE] = Field(10, gt=0, description="Steps per line in metrics.jsonl.")
    checkpoint_every: Annotated[int, MAY_CHANGE] = Field(100, gt=0, description="Steps between checkpoints.")
    stop: Annotated[StopSettings | None, MAY_CHANGE] = Field(
        None, description="Rule that ends the stage before its last step."
    )
    train: OptimiserSettings = Field(
        default_factory=OptimiserSettings, description="Keys that differ from the recipe's `train`."
    )

    @model_validator(mode="after")
    def _is_not_evaluated(self) -> Self:
        if self.stop is not None and self.stop.evaluates:
            message = "a supervised or preference stage is not evaluated: the rule could never end it"
            remedy = "a metric of its own lines, for example {metric: loss, at_most: 0.1}"
            raise misplaced("stop.metric", message, self.stop.metric, remedy)
        return self

    @model_validator(mode="after")
    def _steps_or_epochs(self) -> Self:
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs")
        return self

    def steps_over(self, samples: int) -> int:
        """The number of steps of a stage with this many episodes (or pairs)."""
        return self.steps or math.ceil((self.epochs or 1) * math.ceil(samples / self.batch))


class RowStage(OfflineStage):
    """Settings of stages that may train on rows: of `jsonl`, `parquet` or `hf`."""

    jsonl: Annotated[str | None, IS_FILE] = Field(
        None, description="File with one JSON object per line, a .json file, or a folder of them (docs/stages.md)."
    )
    parquet: Annotated[str | None, IS_FILE] = Field(None, description="Parquet file, or a folder of such files.")
    hf: Annotated[str | None, NAMES_FILE] = Field(
        None, description="Data set for the package datasets: a folder, or a hub name."
    )
    split: str | None = Field(None, description="With hf: the split; needed if there are several.")
    subset: str | None = Field(None, description="With hf: the configuration of the data set.")
    revision: str | None = Field(None, description="With hf: a branch, a tag or a commit of the hub; default: main.")
    tools: str | None = Field(
        None, description="With rows: field with the definitions of a row's tools; dots lead inside; default: tools."
    )

    @property
    def rows(self) -> str | None:
        """The key of the source of rows, or None."""
        return next((key for key in ROWS if getattr(self, key) is not None), None)

    @model_validator(mode="after")
    def _of_rows(self) -> Self:
        _only_with(self, "hf", "split", "subset", "revision")
        return self


class SftStage(RowStage, Short):
    """Supervised training on exactly one of `script`, `jsonl`, `parquet`, `hf`, `run` and `text`."""

    script: str | None = Field(None, description="Name of a script (under `scripts`) that plays demonstrations.")
    episodes: int = Field(256, gt=0, description="With script: number of demonstrations.")
    tasks: TaskSettings | None = Field(None, description="With script: their tasks; default: the recipe's tasks.")
    messages: str | list[str] | None = Field(
        None,
        description="With rows: field with the conversation; dots lead inside; default: messages, conversations. A "
        "list of fields: the parts of one conversation, for example [request.messages, response.choices.0.message].",
    )
    run: Annotated[str | None, NAMES_FILE] = Field(
        None, description="Stored episodes: the name of an earlier stage, or a run directory."
    )
    min_reward: float | None = Field(None, description="With run: only episodes with at least this reward.")
    credit: CreditSettings | None = Field(
        None, description="With run: the estimator of each turn's advantage, for the loss (awr); default: all are 1."
    )
    text: Annotated[str | None, IS_FILE] = Field(
        None, description='Raw text without a chat template: a file of rows {"text": ...}, or ./file.py:function.'
    )
    length: int | None = Field(
        None, gt=1, description="With text: tokens of the pieces that texts are cut into; default: the model's context."
    )
    loss: ImitationLossSettings = Field(
        default_factory=ImitationLossSettings, description="A name, or {use: NAME, ...} with its settings."
    )

    @classmethod
    def spelled_out(cls, value: Any) -> Any:
        """A string is the script."""
        return alone(value, "script")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _exactly_one(self, "script", *ROWS, "run", "text")
        _only_with_rows(self, "messages", "tools")
        _only_with(self, "script", "episodes", "tasks")
        _only_with(self, "run", "min_reward", "credit")
        _only_with(self, "text", "length")
        return self


class PreferenceStage(RowStage):
    """Training on preferences, from exactly one of `jsonl`, `parquet`, `hf` and `run`."""

    run: Annotated[str | None, NAMES_FILE] = Field(
        None, description="The name of an earlier stage, or a run directory: the best and worst episode of each group."
    )
    min_gap: float = Field(1e-6, gt=0, description="With run: ignore pairs whose rewards differ by less than this.")
    threshold: float | None = Field(
        None, description="With run and the loss kto: train on all episodes; those with at least this reward are good."
    )
    loss: PreferenceLossSettings = Field(
        default_factory=PreferenceLossSettings, description="A name, or {use: NAME, ...} with its settings."
    )
    lr: float = Field(1e-6, gt=0, description="Peak learning rate, after a warm-up over the first 20th of the steps.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        _exactly_one(self, *ROWS, "run")
        _only_with_rows(self, "tools")
        _only_with(self, "run", "min_gap", "threshold")
        return self


def _exactly_one(section: Section, *keys: str) -> None:
    given = [key for key in keys if getattr(section, key) is not None]
    if len(given) != 1:
        raise ValueError(f"give exactly one of {', '.join(keys)}" + (f", found {' and '.join(given)}" if given else ""))


def _only_with(section: Section, key: str, *others: str) -> None:
    """Raises if a key is given without the key that it needs."""
    fields = type(section).model_fields
    for other in others:
        if getattr(section, key) is None and getattr(section, other) != fields[other].default:
            raise ValueError(f"{other!r} needs {key!r}")


def _only_with_rows(stage: RowStage, *keys: str) -> None:
    if stage.rows is None and (given := [key for key in keys if getattr(stage, key) is not None]):
        raise ValueError(f"{given[0]!r} needs 'jsonl', 'parquet' or 'hf'")
