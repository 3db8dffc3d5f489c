"""Two different images of one size are told apart wherever equal tokens are shared, and one image is equal to itself.

A model gives both the same placeholder tokens. The ids in records differ, so that nothing else has to know of images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.chat.formats.registry import parser_of
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer, HFTokenizer
from agentrl.config.agent import FormatSettings
from agentrl.estimators.history import history_of, prefix_values
from agentrl.proxy.messages import keys_of
from agentrl.types.engine import Sampling
from agentrl.types.episode import Episode, Node, Turn, VersionSpan
from agentrl.types.errors import RenderError
from agentrl.types.parts.image import data_url
from agentrl.types.parts.placeholders import fault_in, ids_of, number_of, placed
from agentrl.types.sample import training_samples
from agentrl.types.task import Task
from agentrl.types.trajectory import ROOT, Trajectory
from tests.chat.families import tokenizer_of
from tests.images import BLUE, RED

WIDTH, HEIGHT = 8, 6
TEXTS_ONLY = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}"
    "{%- for part in m.content if m.content is not string and part.type == 'text' %}{{- part.text }}{%- endfor %}"
    "{{- (m.content if m.content is string else '') + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


@dataclass
class Grid:
    """A token for each 4 x 3 pixels, and a border behind each row."""

    name = "grid"
    placeholder = "<|image_pad|>"
    vision_tokens = ()
    settings: dict[str, Any] = field(default_factory=lambda: {"patch": [4, 3]})
    border: int = 7

    def layout(self, width: int, height: int) -> Sequence[int | None]:
        return [*[None] * (width // 4), self.border] * (height // 3)


def part(data: bytes) -> dict[str, Any]:
    blob = hashlib.sha256(data).hexdigest()
    return {"type": "image", "blob": blob, "width": WIDTH, "height": HEIGHT, "format": "png"}


def renderer_of(kind: str) -> Renderer:
    tokenizer: Any = ByteTokenizer()
    if kind == "template":
        hf = tokenizer_of("qwen3_vl")
        tokenizer = HFTokenizer(hf.hf)
        tokenizer.processor = Grid()
    return Renderer(tokenizer, parser_of(FormatSettings(use="hermes"), []), [])


def opening(data: bytes, role: str = "user") -> list[dict[str, Any]]:
    shown = {"role": role, "content": [{"type": "text", "text": "What is it?"}, part(data)]}
    return [shown] if role == "user" else [{"role": "system", "content": "Look."}, shown]


KINDS = pytest.mark.parametrize("kind", ["bytes", "template"])


@KINDS
def test_openings_differ_in_the_image_alone(kind: str) -> None:
    renderer = renderer_of(kind)
    red, blue, again = (renderer.start(opening(data)) for data in (RED, BLUE, RED))  # in turn: nothing is remembered
    assert red == again
    assert len(red) == len(blue)
    differ = [(a, b) for a, b in zip(red, blue, strict=True) if a != b]
    count = {"bytes": 1, "template": 4}[kind]
    assert differ == list(zip(ids_of(part(RED)["blob"], count), ids_of(part(BLUE)["blob"], count), strict=True))


def test_a_template_says_where_an_image_stands_and_the_processor_of_what_it_is() -> None:
    renderer = renderer_of("template")
    ids, controls = renderer.start(opening(RED)), renderer.tokenizer.controls
    at = ids.index(controls["<|vision_start|>"])
    first, second, third, fourth = ids_of(part(RED)["blob"], 4)
    assert ids[at : at + 8] == [
        controls["<|vision_start|>"],
        first,
        second,
        7,
        third,
        fourth,
        7,
        controls["<|vision_end|>"],
    ]


@KINDS
@pytest.mark.parametrize("role", ["user", "tool"])
def test_what_is_appended_is_what_the_template_puts_there(kind: str, role: str) -> None:
    """Also where text looks like a placeholder."""
    renderer = renderer_of(kind)
    content = [part(RED), {"type": "text", "text": "<|image_pad|> and <|image|>"}, part(BLUE)]
    new = [{"role": role, "name": "look", "tool_call_id": "c", "content": content}]
    prompt = renderer.start(opening(RED))
    said = renderer.demonstrate("I look.", prompt)
    whole = renderer.start([*opening(RED), {"role": "assistant", "content": "I look."}, *new])
    assert [*prompt, *said, *renderer.extend(said, new)] == whole
    assert [found.blob for found in placed(whole, {part(RED)["blob"], part(BLUE)["blob"]}) if not found.position] == [
        part(data)["blob"] for data in (RED, RED, BLUE)
    ]
    assert renderer.read(prompt, said, [])[0] == "I look."


def test_a_model_that_takes_text_only_is_shown_no_image() -> None:
    renderer = Renderer(tokenizer_of("qwen3"), parser_of(FormatSettings(use="hermes"), []), [])
    with pytest.raises(RenderError, match=r"message 0 \(user\): the model of qwen3 takes text only"):
        renderer.start(opening(RED))
    assert renderer.start([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]) == renderer.start(
        [{"role": "user", "content": "Hi"}]
    )


def test_a_template_that_drops_an_image_is_refused() -> None:
    hf = tokenizer_of("qwen3")
    hf.hf.chat_template = TEXTS_ONLY
    tokenizer: Any = HFTokenizer(hf.hf)
    tokenizer.processor = Grid()
    tokenizer.controls = {**tokenizer.controls, "<|image_pad|>": 5}
    renderer = Renderer(tokenizer, parser_of(FormatSettings(use="hermes"), []), [])
    with pytest.raises(RenderError, match="writes 0 placeholders for 1 images"):
        renderer.start(opening(RED))


def test_a_reply_holds_no_image() -> None:
    with pytest.raises(RenderError, match="a reply holds an image"):
        renderer_of("bytes").start([{"role": "assistant", "content": [part(RED)]}])


def episode(name: str, data: bytes, answer: str = "yes") -> Episode:
    """One turn after an opening with an image."""
    renderer = renderer_of("template")
    prompt = renderer.start(opening(data))
    said = renderer.demonstrate(answer, prompt)
    spans = [VersionSpan(0, 0, len(said))]
    nodes = [
        Node(parent=-1, kind="prompt", token_ids=prompt),
        Node(parent=0, kind="sampled", token_ids=said, logprobs=[-0.5] * len(said), versions=spans),
    ]
    turn = Turn(index=0, node=1, text=answer, finish="stop")
    task = Task.of("t", "")
    return Episode(id=name, group_id="g", task=task, status="done", prompt=opening(data), nodes=nodes, turns=[turn])


def test_a_prompt_goes_on_from_another_with_the_same_image_only() -> None:
    trajectory, prompts = Trajectory(), {data: renderer_of("template").start(opening(data)) for data in (RED, BLUE)}
    red = trajectory.append_whole(ROOT, prompts[RED])
    at = next(k for k, token in enumerate(prompts[RED]) if token < 0)
    assert trajectory.shared_prefix(red, prompts[BLUE]) == at
    assert trajectory.shared_prefix(red, [*prompts[RED], 1]) == len(prompts[RED])
    assert trajectory.nodes[trajectory.append_whole(red, [*prompts[BLUE], 1])].parent == ROOT
    assert trajectory.nodes[trajectory.append_whole(red, [*prompts[RED], 1])].parent == red


def test_packs_share_an_image_with_itself_only() -> None:
    from agentrl.training.model.packing import pack

    samples = [
        sample
        for name, data in (("a", RED), ("b", BLUE), ("c", RED))
        for sample in training_samples(episode(name, data, f"It is {name}."), [1.0])
    ]
    assert [sample.token_ids.dtype for sample in samples] == [np.int64] * 3
    (packed,) = pack(samples, 10_000)
    at = next(k for k, token in enumerate(samples[0].token_ids) if token < 0)
    own = {samples[index].episode_id: segment for index, segment in zip(packed.samples, packed.segments, strict=True)}
    shared = {name: len(each.path) - (each.end - each.start) for name, each in own.items()}
    assert sorted(shared) == ["a", "b", "c"]
    assert min(shared["a"], shared["c"]) == 0 or shared["b"] == 0
    prompt = len(episode("a", RED).nodes[0].token_ids)
    assert max(shared["a"], shared["c"]) >= prompt  # the same image: the whole prompt is forwarded once
    assert shared["b"] in (0, at)  # another image: nothing from it on
    tokens = {
        index: packed.token_ids[segment.path] for index, segment in zip(packed.samples, packed.segments, strict=True)
    }
    for index, path in tokens.items():
        assert path.tolist() == samples[index].token_ids[: len(path)].tolist()


def test_tree_credit_tells_them_apart() -> None:
    """The value of a prefix is the mean score of those that share it: red ones, and not the blue one."""
    episodes = [episode("a", RED), episode("b", BLUE), episode("c", RED)]
    score, group = np.array([1.0, 0.0, 0.5]), np.zeros(3, np.int64)
    sampled = np.array([len(each.nodes[1].token_ids) for each in episodes])
    before, _ = prefix_values(history_of(episodes), group, score, sampled)
    assert before[[0, sampled[0], sampled[:2].sum()]].tolist() == [0.75, 0.0, 0.75]


def test_a_kept_cache_is_taken_up_to_another_image_only(tmp_path: Any) -> None:
    """That of a session of its own, of others, and of rows that run."""
    from agentrl.engines.embedded.batch import Batch
    from agentrl.engines.embedded.kv_cache import Parked, Tensors
    from agentrl.engines.embedded.request import DecodeRequest
    from tests.engines.vllm_world import small_model

    batch = Batch(small_model(tmp_path).model, max_batch=4, parked_bytes=1 << 20)
    system = [{"role": "system", "content": "Look. " * 40}]
    red, blue = (renderer_of("bytes").start([*system, *opening(data)]) for data in (RED, BLUE))
    at = next(k for k, token in enumerate(red) if token < 0)

    def request(session: str, token_ids: list[int]) -> DecodeRequest:
        return DecodeRequest(session, token_ids, Sampling(), 1, 0, lambda *_: None)

    batch.parked.put("s", Parked(red, Tensors(())))
    for session in ("s", "other"):
        assert batch._best_source(request(session, [*red, 1, 2]))[0] == len(red)
        assert batch._best_source(request(session, [*blue, 1, 2]))[0] == at
    batch.parked.clear()
    batch.running.append(request("r", red))
    assert batch._best_source(request("s", [*red, 1, 2]))[0] == len(red) - 1
    assert batch._best_source(request("s", [*blue, 1, 2]))[0] == at
    batch.running.clear()
    leaders, twins, held_back = batch._parted([request("a", red), request("b", blue), request("c", red)])
    assert [entry[0].session for entry in leaders] == ["a"]
    assert [(one.session, leader.session) for one, leader in twins] == [("c", "a")]
    assert [each.session for each in held_back] == ["b"]  # waits for what comes before the image


def test_a_conversation_is_found_by_its_images() -> None:
    def asked(data: bytes) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(data)}}]}]

    assert keys_of(asked(RED)) == keys_of(asked(RED)) != keys_of(asked(BLUE))


def test_ids_are_64_bits_and_come_back_to_their_image() -> None:
    blobs = [hashlib.sha256(bytes([k])).hexdigest() for k in range(200)]
    assert len({number_of(blob) for blob in blobs}) == 200
    ids = [5, *(token for blob in blobs for token in ids_of(blob, 3)), 6]
    assert np.array(ids, np.int64).tolist() == ids
    assert [found.blob for found in placed(ids, blobs)] == [blob for blob in blobs for _ in range(3)]
    assert msgspec.json.decode(msgspec.json.encode(ids)) == ids


def test_an_image_that_is_not_whole_is_named() -> None:
    one, other = "a" * 64, "b" * 64
    whole, cut = ids_of(one, 4), ids_of(one, 4)[:3]
    counts: dict[str, int] = {}
    assert fault_in([1, *whole, 2, *whole, *ids_of(other, 2)], [one, other], counts) is None
    assert counts == {one: 4, other: 2}
    assert fault_in([1, *cut, 2], [one], dict(counts)) == "image aaaaaaaaaaaa has 3 placeholders, elsewhere 4"
    assert fault_in([*cut, *whole], [one], {}) == "image aaaaaaaaaaaa has 4 placeholders, elsewhere 3"
    assert "is placeholder 2 of image aaaaaaaaaaaa" in (fault_in([1, *whole[2:]], [one], {}) or "")
    assert "names no image of the episode" in (fault_in([1, *whole], [other], {}) or "")
    assert fault_in([1, 2, 3], [], {}) is None


async def test_engines_and_models_that_take_text_only_refuse_them_by_name(tmp_path: Any) -> None:
    from agentrl.engines.vllm.engine import VLLMEngine
    from agentrl.engines.vllm.settings import VLLMSettings
    from agentrl.training.model.packing import pack
    from agentrl.training.model.policy import hidden_states
    from agentrl.types.errors import TrainError
    from agentrl.types.parts.intake import CannotSee
    from tests.training.make import llama

    red = renderer_of("bytes").start(opening(RED))
    engine = VLLMEngine(VLLMSettings(), ["http://127.0.0.1:9"], tokenizer=ByteTokenizer())
    with pytest.raises(CannotSee, match="the engine vllm takes text only"):
        await engine.generate(red, Sampling(), "s")
    await engine.close()
    (packed,) = pack(training_samples(episode("a", RED), [1.0]), 10_000)
    with pytest.raises(TrainError, match="a sample holds an image, and LlamaForCausalLM takes text only"):
        hidden_states(llama(), packed)
