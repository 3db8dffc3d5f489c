"""The section `scale` of a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ScaleSettings(BaseModel):
    """Where the episodes of a run are played."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Literal["local", "process", "ray"] = Field(
        "local", description="Where rollout workers are put: this process, processes of this machine, a Ray cluster."
    )
    rollout_workers: int = Field(
        0, ge=0, description="Workers that play episodes, each with its own tools and sandboxes; 0: the driver plays."
    )
    restarts: int = Field(3, ge=0, description="Workers that die are replaced, so many times in all.")
    start_s: float = Field(300, gt=0, description="Seconds within which a worker must have started.")
    worker_cpus: float = Field(1, gt=0, description="ray: CPUs that are reserved for each worker.")
    address: str | None = Field(
        None, description="ray: the cluster, as HOST:PORT or auto; default: $RAY_ADDRESS, else one on this machine."
    )

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
        return {"backend": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _belong_together(self) -> ScaleSettings:
        if self.backend != "local" and not self.rollout_workers:
            raise ValueError(f"backend is {self.backend!r}: say how many workers, for example rollout_workers: 2")
        for name in ("worker_cpus", "address"):
            if self.backend != "ray" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name!r} belongs to ray, and backend is {self.backend!r}")
        return self
