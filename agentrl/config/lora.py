"""What can be set about LoRA and about which layers train. Free of torch: a recipe is checked without it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LoraSettings(BaseModel):
    """Low-rank adapters in place of full training (needs the extra `lora`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(16, gt=0, description="Rank of the adapters.")
    alpha: float = Field(32.0, gt=0, description="Their product is scaled by alpha / rank.")
    targets: list[str] | None = Field(
        None, min_length=1, description="Names of linear layers (q_proj, ...); default: all within the decoder layers."
    )


class Trainable(BaseModel):
    """Which part of the model trains; the rest stays, and no gradient is computed below it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    top_layers: int = Field(gt=0, description="The topmost decoder layers and the last norm train; embeddings stay.")
