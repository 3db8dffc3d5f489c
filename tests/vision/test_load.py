"""Loading a model that sees: its processor, what it refuses, and what a run with it records."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from agentrl.api.recipe_check import check
from agentrl.chat import proof
from agentrl.chat.formats.registry import parser_of
from agentrl.chat.renderer import Renderer
from agentrl.config.agent import FormatSettings
from agentrl.config.model import ModelSettings
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.models.load import LoadedModel, chat_tokenizer, load_model, sees
from agentrl.types.errors import EngineError, RecipeError, RenderError
from agentrl.types.parts.image import ImageRefused
from agentrl.types.parts.intake import CannotSee
from tests.vision.families import FAMILIES, picture


def saved(kind: str, place: Path) -> Path:
    """The folder of a tiny model."""
    loaded = FAMILIES[kind]()
    loaded.model.save_pretrained(place)
    loaded.save_described(str(place))
    return place


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("qwen2_vl", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(ModelSettings(path=str(folder), device="cpu"), seed=0)


def png(width: int, height: int, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (width, height)).save(out, "PNG")
    return out.getvalue()


def test_a_folder_that_sees_is_loaded_with_its_processor(folder: Path, loaded: LoadedModel) -> None:
    assert loaded.processor is not None
    assert sees(ModelSettings(path=str(folder)))
    tokenizer = chat_tokenizer(ModelSettings(path=str(folder)))
    assert tokenizer.processor is not None
    assert tokenizer.processor.settings == loaded.processor.settings
    assert loaded.processor.settings["patch_size"] == 4
    assert loaded.processor.placeholder == "<|image_pad|>"


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "I;16"])
def test_images_of_every_mode_become_three_channels(loaded: LoadedModel, mode: str) -> None:
    assert loaded.processor is not None
    assert loaded.processor.pixels(png(16, 16, mode)).inputs["pixel_values"].isfinite().all()


def test_what_is_transparent_becomes_white(loaded: LoadedModel) -> None:
    assert loaded.processor is not None
    clear, white = (io.BytesIO(), io.BytesIO())
    Image.new("RGBA", (16, 16), (0, 0, 0, 0)).save(clear, "PNG")
    Image.new("RGB", (16, 16), "white").save(white, "PNG")
    found = [loaded.processor.pixels(each.getvalue()).inputs["pixel_values"] for each in (clear, white)]
    assert found[0].equal(found[1])


def damaged() -> bytes:
    """A PNG whose chunks are whole, and whose pixels are not."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 16, 16, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"no pixels") + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "words"), [(damaged(), "cannot be decoded"), (png(1, 201), "1 x 201 pixels is not taken")]
)
async def test_an_image_that_the_model_does_not_take_is_refused(loaded: LoadedModel, data: bytes, words: str) -> None:
    engine = TorchEngine(loaded.model, processor=loaded.processor)
    try:
        with pytest.raises(ImageRefused, match=words):
            engine.check_image(data)
        engine.check_image(picture(0))
    finally:
        await engine.close()


def test_rendering_with_images_is_proven(loaded: LoadedModel) -> None:
    tokenizer = loaded.chat()
    proof.check(Renderer(tokenizer, parser_of(FormatSettings(use="hermes"), []), []))
    # It writes an image of the last message only: an earlier one would be gone from a whole render.
    moved = str(tokenizer.hf.chat_template).replace("part['type'] == 'image'", "part['type'] == 'image' and loop.last")
    own = tokenizer.hf.chat_template
    tokenizer.hf.chat_template = moved
    try:
        with pytest.raises(RenderError, match="placeholder"):
            proof.check(Renderer(tokenizer, parser_of(FormatSettings(use="hermes"), []), []))
    finally:
        tokenizer.hf.chat_template = own


OWN_LLAVA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""LLaVA-1.5-hf's template."""


def test_llavas_own_template_is_refused_and_the_shipped_one_taken() -> None:
    loaded = FAMILIES["llava"]()
    renderer = Renderer(loaded.chat(), parser_of(FormatSettings(use="hermes"), []), [])
    proof.check(renderer)
    part = {"type": "image", "blob": "a" * 64, "width": 40, "height": 24, "format": "png"}
    prompt = renderer.start([{"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}])
    said = loaded.tokenizer.decode([token for token in prompt if token >= 0])
    assert said == "USER: \nWhat is it? ASSISTANT:"
    loaded.tokenizer.chat_template = OWN_LLAVA
    with pytest.raises(RenderError, match="ends a reply with text, not with a control token"):
        proof.check(Renderer(loaded.chat(), parser_of(FormatSettings(use="hermes"), []), []))


def test_a_sampled_token_of_images_is_a_fault(loaded: LoadedModel) -> None:
    renderer = Renderer(loaded.chat(), parser_of(FormatSettings(use="hermes"), []), [])
    prompt = renderer.start([{"role": "user", "content": "Go."}])
    said = [*renderer.demonstrate("I see ", prompt)[:-1], loaded.model.config.image_token_id]
    text, reply = renderer.read(prompt, said, [])
    assert "<|image_pad|>" in text
    assert [fault.message for fault in reply.errors] == [
        "the reply holds <|image_pad|>, which stands for an image: write text only"
    ]


def test_a_folder_without_its_processor_says_so(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if "processor" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(RecipeError, match="has no image processor, and qwen2_vl sees"):
        load_model(ModelSettings(path=str(tmp_path), device="cpu"), seed=0)


async def test_batch_invariance_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(EngineError, match="images are not computed batch-invariantly"):
        TorchEngine(loaded.model, processor=loaded.processor, batch_invariant=True)


RECIPE = """
name: look
tasks: ./task.py:tasks
agent: {max_turns: 2, format: hermes}
rewards: {nothing: ./task.py:nothing}
model: {path: MODEL, device: cpu}
sampling: {max_tokens: 4}
train: {iterations: 1, groups: 2, group_size: 2}
"""

TASK = """
import io
from agentrl import Task
from PIL import Image

def tasks():
    for k in range(2):
        image = Image.new("RGB", (40, 24), (90 * k, 0, 0))
        yield Task.of(f"t{k}", [{"role": "user", "content": [{"type": "image", "image": image}]}])

def nothing(episode):
    return float(len(episode.turns[0].text))
"""


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_recipe_check_knows_which_models_an_engine_shows_images(folder: Path, tmp_path: Path, engine: str) -> None:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("MODEL", str(folder)) + f"engine: {{use: {engine}}}\n")
    check(str(tmp_path), [])
    with pytest.raises(CannotSee, match=f"the engine {engine} takes text only"):
        check(str(tmp_path), ["model={scratch: {hidden: 32}}"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_vl", "llava", "smolvlm"])
def test_a_model_that_sees_trains(kind: str, tmp_path: Path) -> None:
    from agentrl import train

    folder = saved(kind, tmp_path / "model")
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "recipe.yaml").write_text(RECIPE.replace("MODEL", str(folder)))
    run: Any = train(str(tmp_path), out=str(tmp_path / "run"))
    kept = run.path / "checkpoints" / "it-00001"
    assert kept.joinpath("preprocessor_config.json").is_file()
    again = load_model(ModelSettings(path=str(kept), device="cpu"), seed=0)
    assert again.processor is not None
    assert again.processor.settings == FAMILIES[kind]().processor.settings
    before, after = (load_model(ModelSettings(path=str(f), device="cpu"), seed=0).model for f in (folder, kept))
    assert before.state_dict().keys() == after.state_dict().keys()
