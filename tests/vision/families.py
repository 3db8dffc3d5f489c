"""Tiny models of the families that see, with random weights, and conversations with images."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image

from agentrl.chat.template import template_text
from agentrl.config.model import ScratchModel
from agentrl.models.load import LoadedModel
from agentrl.models.scratch import build
from agentrl.models.vision.processor import processor_of

TEXTS = ["<tool_call>look</tool_call> What is it? It is red. And this one? Blue."] * 3


def qwen(kind: str, seed: int = 0) -> LoadedModel:
    """A model of `qwen2_vl`, `qwen2_5_vl` or `qwen3_vl`."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    own, tokenizer, longest = written(seed)
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
    model = random_model(name, seed, text_config=text, vision_config=vision, **tokens)
    hf = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=2048)
    return LoadedModel(model, tokenizer, longest, processor_of(model.config, hf, tokenizer))


def llava(tower: str = "clip", seed: int = 0) -> LoadedModel:
    """A LLaVA with the tower of CLIP (LLaVA-1.5), or of SigLIP, and the shipped template."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    own, tokenizer, longest = written(seed)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<image>"]})
    tokenizer.chat_template = template_text("llava")
    vision = SMALL | {"model_type": f"{tower}_vision_model", "image_size": 16, "projection_dim": 16}
    model = random_model(
        "Llava",
        seed,
        text_config=decoder(own, tokenizer),
        vision_config=vision,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="default" if tower == "clip" else "full",
        vision_feature_layer=-2,
    )
    hf: Any = SiglipImageProcessorPil(size={"height": 16, "width": 16})
    if tower == "clip":
        hf = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    return LoadedModel(model, tokenizer, longest, processor_of(model.config, hf, tokenizer))


def idefics3(kind: str, seed: int = 0, hidden: int = 32, tower: int = 16) -> LoadedModel:
    """A model of `idefics3` or `smolvlm`, with the tokens and the template of SmolVLM."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    own, tokenizer, longest = written(seed, hidden)
    places = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer.add_special_tokens(
        {
            "eos_token": "<end_of_utterance>",
            "extra_special_tokens": ["<image>", "<fake_token_around_image>", "<global-img>", *places],
        }
    )
    tokenizer.chat_template = SMOLVLM
    name, processor = {
        "idefics3": ("Idefics3", Idefics3ImageProcessorPil),
        "smolvlm": ("SmolVLM", SmolVLMImageProcessorPil),
    }[kind]
    model = random_model(
        name,
        seed,
        text_config=decoder(own, tokenizer),
        vision_config=SMALL | {"hidden_size": tower, "image_size": 16},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        scale_factor=2,
    )
    hf = processor(size={"longest_edge": 30}, max_image_size={"longest_edge": 16})
    return LoadedModel(model, tokenizer, longest, processor_of(model.config, hf, tokenizer))


SMALL = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": 4,
}  # fmt: skip
"""A tower."""

SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""The chat template of SmolVLM-Instruct."""


def written(seed: int, hidden: int = 32) -> tuple[Any, Any, int]:
    """A scratch model, its tokenizer and its longest context."""
    scratch = ScratchModel.model_validate(
        {"hidden": hidden, "layers": 3, "heads": 2, "kv_heads": 1, "vocab_size": 400, "max_context": 2048, "vision": {}}
    )
    own, tokenizer, longest, _ = build(scratch, TEXTS, seed)
    return own, tokenizer, longest


def decoder(own: Any, tokenizer: Any) -> dict[str, Any]:
    """The decoder of a scratch model as a Llama for all tokens of a tokenizer."""
    text = own.config.text_config.to_dict() | {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "head_dim": own.config.text_config.hidden_size // 2,
    }
    return text | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": True}


def random_model(name: str, seed: int, **config: Any) -> Any:
    """A model of transformers with random weights, large enough for images to matter."""
    import transformers

    own = getattr(transformers, f"{name}Config")(tie_word_embeddings=True, attn_implementation="sdpa", **config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForConditionalGeneration")(own).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.15) if parameter.ndim > 1 else None
    return model


FAMILIES = {
    **{kind: lambda kind=kind: qwen(kind) for kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")},
    "llava": llava,
    "llava-siglip": lambda: llava("siglip"),
    **{kind: lambda kind=kind: idefics3(kind) for kind in ("idefics3", "smolvlm")},
}


def picture(seed: int, width: int = 40, height: int = 24) -> bytes:
    """A PNG file of random colours."""
    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def shown(text: str, part: dict[str, Any], role: str = "user") -> dict[str, Any]:
    """A message with an image."""
    return {"role": role, "content": [{"type": "text", "text": text}, part]}
