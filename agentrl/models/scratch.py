"""Models from scratch: a small Llama (Qwen2-VL, if it takes images) with random weights and a new tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agentrl.config.model import ScratchModel, ScratchVision
from agentrl.models.vision.processor import ImageProcessor, processor_of
from agentrl.types.errors import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<|pad|>", "<|im_start|>", "<|im_end|>")
IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
ROLES = ("system", "user", "assistant", "tool")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_WITH_IMAGES = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|image_pad|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build(
    scratch: ScratchModel, texts: Iterable[str] | None, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, int, ImageProcessor | None]:
    """Builds model, tokenizer, maximum context length, and processor.

    Raises:
        RecipeError: texts to train the tokenizer on are missing.
        MissingExtra: it takes images, and Pillow is not installed.
    """
    if texts is None:
        raise RecipeError(
            "a scratch model needs texts to train its tokenizer on",
            place="model",
            remedy="add a warm_start to the recipe, or use model.path",
        )
    import torch

    tokenizer = _train_tokenizer(texts, scratch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vision = scratch.vision
        model = _llama(scratch, tokenizer) if vision is None else _qwen2_vl(scratch, vision, tokenizer)
    processor = None if scratch.vision is None else _processor(scratch.vision, model.config, tokenizer)
    return model.eval(), tokenizer, scratch.max_context, processor


def _llama(scratch: ScratchModel, tokenizer: Any) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_type": "default", "rope_theta": scratch.rope_theta}
    text = {**_decoder(scratch, tokenizer), "rope_parameters": rope, "tie_word_embeddings": True}
    config = LlamaConfig(**text, attn_implementation="sdpa")
    return LlamaForCausalLM(config)


def _qwen2_vl(scratch: ScratchModel, vision: ScratchVision, tokenizer: Any) -> PreTrainedModel:
    """Builds a Qwen2-VL model with single images as frames."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    half = scratch.hidden // scratch.heads // 2
    sections = [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8]
    rope = {"rope_type": "default", "rope_theta": scratch.rope_theta, "mrope_section": sections}
    text = {**_decoder(scratch, tokenizer), "rope_parameters": rope, "tie_word_embeddings": True}
    start, end, image, video = (tokenizer.convert_tokens_to_ids(token) for token in IMAGE_TOKENS)
    config = Qwen2VLConfig(
        text_config=text,
        vision_config={
            "depth": vision.layers,
            "embed_dim": vision.hidden,
            "hidden_size": scratch.hidden,
            "num_heads": vision.heads,
            "mlp_ratio": 4,
            "patch_size": vision.patch,
            "spatial_merge_size": vision.merge,
            "temporal_patch_size": 1,
            "initializer_range": scratch.init_range,
        },
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        initializer_range=scratch.init_range,
    )
    return Qwen2VLForConditionalGeneration(config)


def _decoder(scratch: ScratchModel, tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": scratch.hidden,
        "intermediate_size": 4 * scratch.hidden,
        "num_hidden_layers": scratch.layers,
        "num_attention_heads": scratch.heads,
        "num_key_value_heads": scratch.kv_heads or scratch.heads,
        "max_position_embeddings": scratch.max_context,
        "initializer_range": scratch.init_range,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _processor(vision: ScratchVision, config: Any, tokenizer: Any) -> ImageProcessor | None:
    from agentrl.types.errors import needs

    with needs("vision"):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    step = vision.patch * vision.merge
    hf = Qwen2VLImageProcessorPil(
        patch_size=vision.patch,
        merge_size=vision.merge,
        temporal_patch_size=1,
        min_pixels=step * step,
        max_pixels=vision.max_tokens * step * step,
    )
    return processor_of(config, hf, tokenizer)


def _train_tokenizer(texts: Iterable[str], scratch: ScratchModel) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE with merges across spaces, so that a frequent phrase becomes one token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    sees = scratch.vision is not None
    controls = [*SPECIAL_TOKENS, *(IMAGE_TOKENS if sees else ())]
    special = re.compile("|".join(map(re.escape, controls)))
    pieces: list[str] = []
    for text in texts:
        # Every message has a header of the template, which should take few tokens too.
        pieces += [piece for piece in special.split(text) if piece] + [f"{role}\n" for role in ROLES]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=scratch.vocab_size,
        min_frequency=2,
        special_tokens=controls,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(pieces, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[2],
        extra_special_tokens=list(IMAGE_TOKENS) if sees else [],
        chat_template=CHATML_WITH_IMAGES if sees else CHATML,
        clean_up_tokenization_spaces=False,
    )
