"""Tiny models of the families that see, with random weights, and conversations with images."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image

from agentrl.config.model import ScratchModel
from agentrl.models.load import LoadedModel
from agentrl.models.scratch import build
from agentrl.models.vision.processor import processor_of

TEXTS = ["<tool_call>look</tool_call> What is it? It is red. And this one? Blue."] * 3


def qwen(kind: str, seed: int = 0) -> LoadedModel:
    """A model of `qwen2_vl`, `qwen2_5_vl` or `qwen3_vl`."""
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    scratch = ScratchModel.model_validate(
        {"hidden": 32, "layers": 3, "heads": 2, "kv_heads": 1, "vocab_size": 400, "max_context": 2048, "vision": {}}
    )
    own, tokenizer, longest, _ = build(scratch, TEXTS, seed)
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[kind]
    text = own.config.text_config.to_dict() | {"head_dim": 16}
    text.pop("model_type")
    towers = {
        "qwen2_vl": {"depth": 2, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2},
        "qwen2_5_vl": {
            "depth": 2, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 32, "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        "qwen3_vl": {
            "depth": 2, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 32,
            "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1],
        },
    }  # fmt: skip
    vision = {"num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, **towers[kind]}
    tokens = {key: getattr(own.config, key) for key in ("image_token_id", "video_token_id", "vision_start_token_id")}
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config=vision, tie_word_embeddings=True, attn_implementation="sdpa", **tokens
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.15) if parameter.ndim > 1 else None
    hf = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=2048)
    return LoadedModel(model, tokenizer, longest, processor_of(config, hf, tokenizer))


FAMILIES = {kind: lambda kind=kind: qwen(kind) for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")}


def picture(seed: int, width: int = 40, height: int = 24) -> bytes:
    """A PNG file of random colours."""
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def shown(text: str, part: dict[str, Any], role: str = "user") -> dict[str, Any]:
    """A message with an image."""
    return {"role": role, "content": [{"type": "text", "text": text}, part]}
