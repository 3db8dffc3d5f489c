"""A model that can be had without a network, as a folder with a tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentrl.models.scratch import CHATML, SPECIAL_TOKENS
from benchmarks.random_models import SIZES, random_model


def in_a_folder(size: str, folder: Path, device: str) -> Path:
    """A random model with a tokenizer that knows as many tokens: one for each byte, three controls, and made-up words,
    which texts are never encoded to. The chat template is ChatML."""
    known = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    known += [f"w{number}" for number in range(SIZES[size]["vocab_size"] - len(known))]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(known)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    pad, _, end = SPECIAL_TOKENS
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, eos_token=end, extra_special_tokens=list(SPECIAL_TOKENS),
        chat_template=CHATML, clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)  # fmt: skip
    model = random_model(size, torch.bfloat16, device)
    model.config.update({"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": None})
    model.generation_config.update(pad_token_id=0, eos_token_id=2, bos_token_id=None)
    model.save_pretrained(folder)
    return folder
