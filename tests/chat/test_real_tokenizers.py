"""Rendering, parsing and training with the tokenizers of Qwen3, Qwen3.6 and DeepSeek, whole vocabularies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.chat.proof import check
from agentrl.chat.recognise import parser_for
from agentrl.chat.renderer import Renderer
from agentrl.chat.template import template_text
from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.store.run_dir import RunDir
from tests.chat.families import template_of
from tests.chat.real_tokenizers import NAMES, real_tokenizer
from tests.chat.test_families import SEARCH, USER, result
from tests.command import agentrl
from tests.counting import CODE, RECIPE

pytestmark = [pytest.mark.slow, pytest.mark.family("formats")]

pytest.importorskip("trl")
FORMATS = {"qwen3": "hermes", "qwen3.6": "xml", "deepseek": "deepseek-v3"}


def tokenizer_of(name: str) -> HFTokenizer:
    template = template_text("deepseek-v3") if name == "deepseek" else template_of(name.replace(".", "_"))
    hf = real_tokenizer(name)
    hf.chat_template = template
    return HFTokenizer(hf)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_conversation_of_calls_and_results(name: str) -> None:
    tokenizer = tokenizer_of(name)
    renderer = Renderer(tokenizer, parser_for(FormatSettings(), tokenizer, [SEARCH]), [SEARCH])
    check(renderer)
    assert renderer.parser.name == FORMATS[name]
    ids = renderer.start([USER])
    for query in ("naïve 日本語 🙂", "  two\n\nlines ", "12345 <|im_end|> x"):
        call = renderer.demonstrate(renderer.parser.format("Let me see.", [("search", {"query": query})]), ids)
        assert call[-1] in renderer.stop_token_ids
        _, reply = renderer.read(ids, call, ["search"])
        assert [c.arguments for c in reply.calls] == [{"query": query}]
        ids += call + renderer.extend(call, [result(f"found {query}")])
    assert tokenizer.decode(ids).count("found ") == 3
    ends = [token for token in ids if token in renderer.stop_token_ids]
    assert len(ends) == len([t for t in renderer.start([USER]) if t in renderer.stop_token_ids]) + {
        "deepseek": 3,  # a result has no end of its own
    }.get(name, 6)


def test_the_vocabularies_are_the_models_own() -> None:
    """Facts: ids in the published tokenizers."""
    assert real_tokenizer("qwen3").convert_tokens_to_ids("<|im_end|>") == 151645
    assert real_tokenizer("qwen3").convert_tokens_to_ids("</think>") == 151668
    assert real_tokenizer("qwen3.6").convert_tokens_to_ids("<|im_end|>") == 248046
    assert real_tokenizer("deepseek").convert_tokens_to_ids("<｜end▁of▁sentence｜>") == 1
    assert real_tokenizer("qwen3").encode("Hello, world") == [9707, 11, 1879]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3", "deepseek"])
def test_a_training(name: str, tmp_path: Path) -> None:
    """A tiny model with the whole vocabulary and the model's template, from rollout to update and back."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer_of(name)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer.hf), hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    folder = tmp_path / "counting"
    model.save_pretrained(folder / "model")
    tokenizer.hf.save_pretrained(folder / "model")
    length = "def length(task, episode): return len(episode.turns[0].text) % 7 / 7\n"
    (folder / "task.py").write_text(CODE + length)
    (folder / "recipe.yaml").write_text(
        RECIPE.replace("exact: ./task.py:exact", "length: ./task.py:length")
        + f"model: {{path: {folder / 'model'}}}\nsampling: {{max_tokens: 6}}\nagent: {{max_turns: 2}}\n"
        "train: {iterations: 1, groups: 2, group_size: 2, lr: 1.0e-3}\ncredit: {use: grpo}\n"
    )
    agentrl("train", "counting", "--out", "run", cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        (line,) = [line for line in run.metrics() if line["split"] == "train"]
    assert line["failed"] == 0
    assert line["tokens"] > 0
    assert line["mismatch_max"] < 1e-4
