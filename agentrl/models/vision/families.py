"""The families of models that see, by `model_type` of their configurations."""

from __future__ import annotations

from typing import Any

from agentrl.models.vision import idefics3, llava, qwen
from agentrl.models.vision.family import Family

FAMILIES = {
    "qwen2_vl": qwen.FAMILY,
    "qwen2_5_vl": qwen.FAMILY,
    "qwen3_vl": qwen.FAMILY,
    "llava": llava.FAMILY,
    "idefics3": idefics3.FAMILY,
    "smolvlm": idefics3.FAMILY,
}


def family_of(config: Any) -> Family | None:
    """The family of a model's configuration; None if it takes text only."""
    return FAMILIES.get(config.model_type)
