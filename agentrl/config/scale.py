"""The section `scale` of a recipe."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from agentrl.config.sections import WithPlugIn
from agentrl.registry.installed import is_foreign
from agentrl.types.errors import nearest

BUILT_IN = ("local", "process", "ray")
OF_RAY = ("worker_cpus", "rank_cpus", "rank_gpus", "server_cpus", "server_gpus", "address")
"""Settings that apply only to Ray."""


class ScaleSettings(WithPlugIn):
    """Placement of a run: rollout workers, trainer ranks and vLLM servers."""

    kind: ClassVar[str] = "launchers"

    use: str = Field(
        "local",
        description="The launcher of workers, ranks and servers. local: in this process; process: as processes of this "
        "machine; ray: on a Ray cluster; or ./file.py:Launcher, with its settings next to `use`.",
    )
    rollout_workers: int = Field(
        0, ge=0, description="Workers that play episodes, each with its own tools and sandboxes; 0: the driver plays."
    )
    trainer_ranks: int = Field(
        1, ge=1, description="Trainer processes that shard the model (FSDP2), including this process."
    )
    restarts: int = Field(
        3,
        ge=0,
        description="Maximum number of replacements for workers and servers that died, and of restarts from the last "
        "checkpoint after a rank died.",
    )
    start_s: float = Field(
        300, gt=0, description="Seconds within which a worker or rank must start, and the cluster must have room."
    )
    worker_cpus: float = Field(1, gt=0, description="ray: CPUs reserved for each worker.")
    rank_cpus: float = Field(
        1, ge=0, description="ray: CPUs reserved for each rank except the first; 0 (with GPUs): on any machine."
    )
    rank_gpus: float | None = Field(
        None, ge=0, description="ray: GPUs of each rank; default: 1 if model.device is cuda, else none."
    )
    server_cpus: float = Field(1, gt=0, description="ray: CPUs reserved for each vLLM server.")
    server_gpus: float | None = Field(
        None,
        ge=0,
        description="ray: GPUs of each vLLM server; default: engine.tensor_parallel if the cluster has GPUs.",
    )
    address: str | None = Field(
        None, description="ray: the cluster, HOST:PORT or auto; default: $RAY_ADDRESS, else a cluster on this machine."
    )

    @model_validator(mode="after")
    def _belong_together(self) -> ScaleSettings:
        if self.use not in BUILT_IN and not is_foreign(self.use, "launchers"):
            remedy = nearest(self.use, BUILT_IN, "name your own as ./file.py:Name, or take one of")
            raise ValueError(f"there is no launcher {self.use!r}; {remedy}")
        if self.use == "local" and self.trainer_ranks > 1:
            raise ValueError("trainer ranks need their own processes: set scale.use to process or ray")
        elsewhere = self.use not in ("local", "ray")  # with ray, servers may be placed alone
        if elsewhere and not self.rollout_workers and self.trainer_ranks == 1:
            raise ValueError(
                f"scale.use is {self.use!r}: set the number of processes, rollout_workers: 2 or trainer_ranks: 2"
            )
        foreign = [name for name in OF_RAY if getattr(self, name) != type(self).model_fields[name].default]
        if foreign and self.use in ("local", "process"):
            raise ValueError(f"{foreign[0]!r} belongs to ray, and scale.use is {self.use!r}")
        return self
