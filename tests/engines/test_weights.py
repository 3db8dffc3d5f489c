"""The engine's own weights: packed for the matrix products, and taken over whole or in part."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.engines.embedded.batch import Batch
from agentrl.engines.embedded.forward.product import packed_part
from agentrl.engines.embedded.request import DecodeRequest
from agentrl.engines.embedded.weights import Weights
from agentrl.types.engine import Completion, Sampling
from agentrl.types.errors import EngineError
from tests.engines.conftest import make_model

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="needs a processor with products in bf16"
)


def bf16_model(seed: int = 0, **changes: object) -> PreTrainedModel:
    model: PreTrainedModel = make_model(seed, **changes).bfloat16()
    return model


def packed_linears(model: nn.Module) -> int:
    return sum(packed_part(module) is not None for module in model.modules())


def sampled(batch: Batch) -> list[Completion]:
    """Twelve rows of different lengths, eight tokens each."""
    found: dict[str, Any] = {}
    for row in range(12):
        name = f"{row}"
        prompt = [1 + (row * 7 + k) % 90 for k in range(3 + row)]
        done = lambda completion, error, name=name: found.__setitem__(name, completion or error)  # noqa: E731
        batch.waiting.append(DecodeRequest(name, prompt, Sampling(), 8, row, done))
    with torch.no_grad():
        while len(found) < 12:
            batch.step()
    return [msgspec.structs.replace(found[f"{row}"], queue_s=None, decode_s=None) for row in range(12)]


def make_batch(model: PreTrainedModel, **options: Any) -> Batch:
    with torch.no_grad():
        return Batch(model, max_batch=12, parked_bytes=1 << 20, **options)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Samples with weights that are not packed."""

    def sample(model: PreTrainedModel, **options: Any) -> list[Completion]:
        with monkeypatch.context() as patch:
            patch.setattr(Weights, "pack", lambda self, works: None)
            return sampled(make_batch(model, **options))

    return sample


@pytest.mark.slow
@pytest.mark.parametrize("invariant", [False, True])
def test_packed_products_are_the_same_bits(plain: Any, invariant: bool) -> None:
    model = bf16_model(attention_bias=True)
    batch = make_batch(model, invariant=invariant)
    assert packed_linears(model) == 15  # 2 layers of 7, and the head
    assert sampled(batch) == plain(bf16_model(attention_bias=True), invariant=invariant)


def test_packed_weights_are_held_once_but_for_a_tied_head() -> None:
    model = bf16_model()
    make_batch(model)
    plain = {name for name in model.state_dict() if "norm" not in name}
    assert plain == {"model.embed_tokens.weight"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("left_out", ["lm_head.weight", "model.embed_tokens.weight"])
def test_new_weights_are_packed(plain: Any, dtype: torch.dtype, left_out: str) -> None:
    new = bf16_model(9).to(dtype).state_dict()
    new.pop(left_out)  # tied: one name of the two is enough
    batch = make_batch(bf16_model())
    batch.update(new, 0)
    assert sampled(batch) == plain(bf16_model(9))


def test_an_update_in_part_leaves_the_other_weights(plain: Any) -> None:
    new = {name: tensor for name, tensor in bf16_model(9).state_dict().items() if ".layers.1." in name}
    mixed = bf16_model()
    mixed.load_state_dict(new, strict=False)
    batch = make_batch(bf16_model())
    with pytest.raises(EngineError, match=r"lack 'lm_head\.weight'"):
        batch.update(new, 0)
    batch.update(new, 0, whole=False)
    assert sampled(batch) == plain(mixed)
    for wrong, words in (
        ({"what": torch.zeros(1)}, "unknown 'what'"),
        ({"lm_head.weight": new.popitem()[1]}, "shapes"),
    ):
        with pytest.raises(EngineError, match=words):
            batch.update({**new, **wrong}, 1, whole=False)


def test_untied_names_are_all_asked_for() -> None:
    batch = make_batch(bf16_model(tie_word_embeddings=False))
    new = bf16_model(9, tie_word_embeddings=False).state_dict()
    del new["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(EngineError, match=r"lack 'model\.layers\.0\.mlp\.up_proj\.weight' \(1 in all\)"):
        batch.update(new, 1)


class Reader(nn.Module):
    """A layer that reads the weights of its linear layer itself, as some families do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, dtype=torch.bfloat16)

    def forward(self, states: Tensor) -> Tensor:
        return states @ self.inner.weight


def test_a_model_that_reads_weights_itself_keeps_them_plain() -> None:
    model, states = Reader(), torch.randn(3, 8).bfloat16()
    before = model(states)
    weights = Weights(model)
    weights.pack(lambda: model(states))
    assert packed_linears(model) == 0
    assert torch.equal(model(states), before)
    weights.take({"inner.weight": torch.zeros(8, 8), "inner.bias": torch.zeros(8)})
    assert not model(states).any()


class TiedReader(Reader):
    """The same, with a layer that shares the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
        self.outer.weight = self.inner.weight

    def forward(self, states: Tensor) -> Tensor:
        return torch.cat([super().forward(states), self.outer(states)], -1)


def test_a_tied_weight_that_was_unpacked_is_updated_under_all_its_names() -> None:
    model, states = TiedReader(), torch.randn(3, 8).bfloat16()
    weights = Weights(model)
    weights.pack(lambda: model(states))
    assert packed_linears(model) == 0
    weights.take({"inner.weight": torch.zeros(8, 8), "inner.bias": torch.zeros(8)})
    assert not model(states).any()


def test_a_second_engine_takes_over_a_packed_model(plain: Any) -> None:
    model = bf16_model()
    make_batch(model)
    second = make_batch(model)
    assert sampled(second) == plain(bf16_model())
    second.update(bf16_model(9).state_dict(), 0)
    assert sampled(second) == plain(bf16_model(9))


def test_float32_models_are_not_packed() -> None:
    model = make_model()
    make_batch(model)
    assert packed_linears(model) == 0


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is another")
def test_freed_memory_stays_with_the_process() -> None:
    program = """
import resource, threading, torch
from agentrl.engines.embedded.draw import draw
from agentrl.engines.embedded.malloc import keep_freed_memory

def work():
    logits, keys = torch.zeros(32, 49152, dtype=torch.bfloat16), torch.arange(32)
    def faults():
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for repeat in range(3):
        before = faults()
        for _ in range(8):
            draw(logits, keys)
    print(faults() - before)

keep_freed_memory()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 2500  # else 4,000 and more
