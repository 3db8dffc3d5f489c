"""The embedded engine on a GPU: other kernels, weights that stay there. Each test runs on the CPU, too."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.engines.embedded.cached_model import MASK_ALIGNMENT, CachedModel
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.types.engine import Completion, Sampling
from agentrl.types.errors import EngineError
from tests.devices import DEVICES, no_gpu

VOCABULARY = 500
NEAR = {torch.float32: 5e-5, torch.bfloat16: 0.05}
"""By type: the allowed mean difference of log-probabilities from those of a plain pass. None may be ten times that."""


def make_model(device: str, dtype: torch.dtype, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.15,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().to(device, dtype)


def plain(model: LlamaForCausalLM, ids: list[int], last: int) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]][-last:].cpu()


async def play(engine: TorchEngine, name: str) -> list[tuple[list[int], Completion]]:
    """An episode of three turns after a prompt that half of the episodes share."""
    rng = random.Random(name)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(n)]

    ids, played = [*range(5, 45)][: 40 * rng.randrange(2)] + tokens(rng.randint(1, 40)), []
    for _ in range(3):
        completion = await engine.generate(ids, Sampling(max_tokens=rng.randint(1, 20), seed=rng.getrandbits(60)), name)
        played.append((ids, completion))
        ids = ids + completion.token_ids + tokens(rng.randint(1, 20))
    engine.end_session(name)
    return played


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", NEAR, ids=str)
async def test_logprobs_are_those_of_a_plain_pass(device: str, dtype: torch.dtype) -> None:
    """Many rows of different lengths, more than fit at once, before and after new weights."""
    engine = TorchEngine(make_model(device, dtype), max_batch=12)
    assert engine.one_by_one is None
    for seed in range(2):
        other = make_model(device, dtype, seed)
        await engine.update(other, seed)
        episodes = await asyncio.gather(*(play(engine, f"{seed}/{k}") for k in range(20)))
        reference = make_model(device, dtype, seed)
        differences = []
        for prompt, completion in (turn for episode in episodes for turn in episode):
            assert completion.token_ids
            wanted = plain(reference, prompt + completion.token_ids, len(completion.token_ids))
            differences.append((torch.tensor(completion.logprobs) - wanted).abs())
        assert torch.cat(differences).mean() < NEAR[dtype]
        assert torch.cat(differences).max() < 10 * NEAR[dtype]
    (scores,) = await engine.score([*range(5, 25)], [[7, 8, 9]])
    assert (torch.tensor(scores) - plain(reference, [*range(5, 25), 7, 8, 9], 3)).abs().max() < 10 * NEAR[dtype]
    await engine.close()


@pytest.mark.parametrize("device", DEVICES)
async def test_a_seed_fixes_the_sample_whatever_else_runs(device: str) -> None:
    """In float32: a draw that rounding could decide is repeated alone."""
    samples = []
    for others in (0, 15):
        engine = TorchEngine(make_model(device, torch.float32), max_batch=16)
        played, *_ = await asyncio.gather(play(engine, "same"), *(play(engine, f"other{k}") for k in range(others)))
        samples.append([completion.token_ids for _, completion in played])
        await engine.close()
    assert samples[0] == samples[1]


@no_gpu
def test_batch_invariance_is_refused() -> None:
    with pytest.raises(EngineError, match="proven on CPUs only"):
        TorchEngine(make_model("cuda", torch.float32), batch_invariant=True)


@pytest.mark.parametrize("device", DEVICES)
def test_attention_makes_nothing_anew_at_each_length(device: str) -> None:
    """cuDNN makes a plan for each length, and attention copies masks that are not aligned: decode steps took five times
    as long on an H200."""
    model = CachedModel(make_model(device, torch.bfloat16))
    model.arena.reserve(2, 13)
    if device == "cuda":
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    slots = torch.arange(12, 13, device=device).expand(2, 1)
    for mask in model._additive(torch.ones((2, 1, 1, 13), dtype=torch.bool, device=device), slots).values():
        assert mask.shape[-1] == 13
        assert mask.stride(-1) == 1
        assert not any(stride % MASK_ALIGNMENT for stride in mask.stride()[:-1])
