"""The input of the simulator: measured or assumed costs of a training run, in seconds and tokens.

Times are for one unit (a replica, a worker, the driver); the number of units is a separate field.
"""

from __future__ import annotations

import math
import random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Spread(_Section):
    """A lognormal distribution of seconds or tokens: its mean, and the standard deviation `sigma` of the logarithm."""

    mean: float = Field(ge=0)
    sigma: float = Field(0.0, ge=0, description="0: always the mean; 1.75: the slowest of a hundred takes 13 means.")

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: Any) -> Any:
        return {"mean": value} if isinstance(value, int | float) else value

    def draw(self, rng: random.Random) -> float:
        """Draws a value."""
        if not self.sigma or not self.mean:
            return self.mean
        return rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)


def _spread(mean: float) -> Any:
    return Field(Spread(mean=mean))


class EpisodeCosts(_Section):
    """The costs of an episode: sandbox, turns of reply and tool, score."""

    turns: Spread = _spread(5)
    prompt_tokens: Spread = _spread(500)
    reply_tokens: Spread = _spread(100)
    observation_tokens: Spread = _spread(200)
    tool_s: Spread = _spread(0.1)
    sandbox_s: Spread = _spread(0)
    score_s: Spread = _spread(0)


class EngineCosts(_Section):
    """Replicas with continuous batching.

    A step of a replica samples one token for each running request. It takes `step_s`, plus `step_s_per_request` per
    request, plus `step_s_per_token` per token of their contexts. Prompts are prefilled between steps.
    """

    replicas: int = Field(1, gt=0)
    gpus: int = Field(1, ge=0, description="Of a replica.")
    max_batch: int = Field(256, gt=0)
    latency_s: float = Field(0.0, ge=0, description="Of a request, beside its computing: network, HTTP.")
    step_s: float = Field(0.02, ge=0)
    step_s_per_request: float = Field(0.0, ge=0)
    step_s_per_token: float = Field(0.0, ge=0)
    prefill_s_per_token: float = Field(0.0, ge=0, description="Only of tokens that the prefix cache lacks.")


class TrainerCosts(_Section):
    """The costs of an update: `update_s`, plus `s_per_token` GPU seconds per token of the episodes, shared by all
    GPUs."""

    gpus: int = Field(1, ge=0)
    update_s: float = Field(0.0, ge=0, description="Whatever its size: optimiser, checkpoint.")
    s_per_token: float = Field(0.0, ge=0, description="Of one GPU; they are taken to share the work without loss.")
    sync_s: float = Field(0.0, ge=0, description="New weights into the engines, which decode on meanwhile.")


class Pipeline(_Section):
    """A training run. The fields from `groups` to `concurrency` are those of the recipe."""

    groups: int = Field(8, gt=0)
    group_size: int = Field(8, gt=0)
    iterations: int = Field(10, gt=0)
    max_staleness: int = Field(0, ge=0)
    concurrency: int = Field(64, gt=0)
    seed: int = 0

    workers: int = Field(1, gt=0, description="Rollout workers, the driver if it plays itself.")
    worker_s_per_turn: float = Field(0.0, ge=0, description="A worker's computing: rendering, parsing, HTTP, tools.")
    driver_s_per_episode: float = Field(0.0, ge=0, description="The driver's: dispatch, storing. There is one driver.")
    sandboxes: int | None = Field(None, gt=0, description="At once at most; null: no limit.")

    episode: EpisodeCosts = Field(default_factory=EpisodeCosts)
    engine: EngineCosts = Field(default_factory=EngineCosts)
    trainer: TrainerCosts = Field(default_factory=TrainerCosts)

    @property
    def gpus(self) -> int:
        """In all."""
        return self.engine.replicas * self.engine.gpus + self.trainer.gpus

    def times(self, factor: int) -> Pipeline:
        """The pipeline with `factor` times the episodes per iteration, replicas, trainer GPUs and workers, and one
        driver."""
        return self.model_copy(
            update={
                "groups": self.groups * factor,
                "concurrency": self.concurrency * factor,
                "workers": self.workers * factor,
                "sandboxes": None if self.sandboxes is None else self.sandboxes * factor,
                "engine": self.engine.model_copy(update={"replicas": self.engine.replicas * factor}),
                "trainer": self.trainer.model_copy(update={"gpus": self.trainer.gpus * factor}),
            }
        )
