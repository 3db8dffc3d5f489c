"""Settings of the vLLM engine in a recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agentrl.config.sections import MAY_CHANGE, PlugIn
from agentrl.engines.replicas import ServerSettings


class TransferSettings(PlugIn):
    """The `engine.transfer` key: a name, or `{use: NAME, ...}` with the transfer's own settings."""

    use: str = Field(
        "file",
        description="file: through a file that both sides see; nccl: between GPUs; or ./file.py:Transfer.",
    )


class VLLMSettings(ServerSettings):
    """Settings of servers that run at `urls`, or that are started."""

    batch_invariant: bool = Field(
        False,
        description="On GPUs (vLLM 0.32): log-probabilities are bit-identical whatever else is in the batch. Slower "
        "(docs/engines.md).",
    )
    replicas: Annotated[int, MAY_CHANGE] = Field(1, gt=0, description="Number of servers to start.")
    tensor_parallel: Annotated[int, MAY_CHANGE] = Field(1, gt=0, description="GPUs per server.")
    gpus: Annotated[list[Annotated[int, Field(ge=0)]] | None, MAY_CHANGE] = Field(
        None,
        min_length=1,
        description="GPUs of the started servers, server after server, as indices among the GPUs that this process "
        "sees; default: the last ones, so that the first ones are left for the trainer.",
    )
    memory_share: Annotated[float | None, MAY_CHANGE] = Field(
        None, gt=0, le=1, description="Share of a GPU's memory for a server; default: vLLM's own (0.92)."
    )
    max_context: int | None = Field(
        None,
        gt=1,
        description="Maximum number of tokens of an episode, for started servers; default: the maximum that the recipe "
        "can need, limited by the model's context.",
    )
    colocate: Annotated[Literal["sleep"] | None, MAY_CHANGE] = Field(
        None,
        description="Servers and trainer share GPUs and take turns. sleep: while the trainer computes, the servers' "
        "weights are kept in host memory.",
    )
    python: Annotated[str | None, MAY_CHANGE] = Field(
        None, description="The interpreter that has vLLM; default: this one, or $AGENTRL_VLLM_PYTHON."
    )
    args: Annotated[list[str], MAY_CHANGE] = Field([], description="Additional arguments of the servers.")
    transfer: Annotated[TransferSettings, MAY_CHANGE] = Field(
        default_factory=TransferSettings, description="How new weights are sent to the servers."
    )
    weights_dir: Annotated[str | None, MAY_CHANGE] = Field(
        None, description="Folder for weight files and adapters; default: shared memory of this machine."
    )
    merge_lora: bool = Field(
        False,
        description="With train.lora, send the full weights with the adapters merged in (in model.dtype) instead of "
        "the adapters alone.",
    )
    seeded: bool = Field(
        False, description="Send a seed with every completion. Slower; not for CPU servers (docs/engines.md)."
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.gpus is not None and len(set(self.gpus)) < len(self.gpus):
            raise ValueError(f"'gpus' contains an index twice: {self.gpus}")
        if self.colocate is not None and self.memory_share is None:
            raise ValueError("'colocate' needs 'memory_share': the share of GPU memory for servers that are awake")
        return self
