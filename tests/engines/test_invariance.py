"""Whoever shares a batch: the tokens of a seed stay, and with `batch_invariant` every bit of what was reported."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from agentrl.config.engine import EngineSettings
from agentrl.engines.embedded import cached_model, decode, tiles
from agentrl.engines.embedded.batch import Batch
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.engines.embedded.request import DecodeRequest
from agentrl.engines.embedded.tiles import BLOCK, PREFILLS, STEP, STEPS, Tile, TiledModel
from agentrl.types.engine import Completion, Sampling
from agentrl.types.errors import EngineError

from .conftest import VOCAB, make_model, of_family, plain_logprobs

WAYS: dict[str, dict[str, int]] = {
    "alone": {"max_batch": 1, "parked_bytes": 1 << 24},
    "a few": {"max_batch": 5, "parked_bytes": 1 << 24},
    "caches evicted": {"max_batch": 12, "parked_bytes": 1 << 16},
    "no caches": {"max_batch": 20, "parked_bytes": 0},
    "all": {"max_batch": 64, "parked_bytes": 1 << 24},
}


@torch.no_grad()
def conversations(
    batch: Batch, order: int, count: int = 6, top_p: float = 0.8, each: Callable[[int], None] = lambda _: None
) -> list[list[DecodeRequest]]:
    """The same conversations of three turns, whose requests come in another order for another `order`. Some share a
    prompt, some are long, some stop early. `each` is called with the number of the step."""
    found: list[list[DecodeRequest]] = [[] for _ in range(count)]
    thinking, when = list(range(count)), random.Random(order)
    when.shuffle(thinking)

    def ask(k: int) -> None:
        turn = len(found[k])
        rng = random.Random(f"{k}/{turn}")
        before = found[k][-1].token_ids if turn else [1] * 60 * (k % 3 == 0)
        prompt = [*before, *(rng.randrange(VOCAB) for _ in range(rng.choice([1, 7, 40, 100])))]
        sampling = Sampling(
            temperature=rng.choice([0, 0.5, 1.0, 1.0]), top_p=rng.choice([1.0, 1.0, top_p]), stop_token_ids=(3,)
        )
        request = DecodeRequest(f"{k}", prompt, sampling, rng.randint(1, 40), rng.getrandbits(63), partial(answered, k))
        found[k].append(request)
        batch.waiting.append(request)

    def answered(k: int, completion: Completion | None, error: BaseException | None) -> None:
        assert completion is not None, error
        if len(found[k]) < 3:
            thinking.insert(when.randint(0, len(thinking)), k)

    steps = 0
    while thinking or batch.waiting or batch.running:
        for _ in range(min(len(thinking), when.randint(0, 1 + count // 4))):
            ask(thinking.pop())
        each(steps)
        batch.step()
        steps += 1
    return found


def said(found: list[list[DecodeRequest]]) -> list[list[list[int]]]:
    return [[request.token_ids for request in turns] for turns in found]


def reported(found: list[list[DecodeRequest]]) -> list[list[list[float]]]:
    return [[request.logprobs for request in turns] for turns in found]


def rows_are_alike(model: Any) -> bool:
    """Whether this machine's kernels compute the rows of a tile alike; the engine says so if they do not."""
    try:
        Batch(model, **WAYS["alone"], invariant=True)
    except EngineError as error:
        if "computes the rows of one matrix product in different ways" not in str(error):
            raise
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "dtype", "ways"),
    [
        (make_model, torch.float32, WAYS),
        (make_model, torch.bfloat16, ("a few", "all")),
        (partial(make_model, num_attention_heads=3, num_key_value_heads=1, hidden_size=42, intermediate_size=51),
         torch.float32, ("alone", "caches evicted")),
        (partial(of_family, "qwen3", vocab_size=VOCAB, head_dim=16), torch.float32, ("alone", "no caches")),
    ],
    ids=["float32", "bfloat16", "odd sizes", "qwen3"],
)  # fmt: skip
def test_equal_bits_whoever_shares_the_batch(make: Any, dtype: torch.dtype, ways: Iterable[str]) -> None:
    torch.manual_seed(0)
    model = make().to(dtype).eval()
    if model.config.hidden_size % 16 and not rows_are_alike(model):
        return  # the other half of the promise: a machine whose kernels tell rows of odd sizes apart is refused
    results = [conversations(Batch(model, **WAYS[way], invariant=True), order) for order, way in enumerate(ways)]
    assert max(len(request.token_ids) for turns in results[0] for request in turns) > 2 * BLOCK
    for result in results[1:]:
        assert said(result) == said(results[0])
        assert reported(result) == reported(results[0])


@pytest.mark.slow
def test_tiles_compute_what_the_plain_model_does() -> None:
    found = conversations(Batch(make_model(), **WAYS["a few"], invariant=True), 0, count=12)
    for request in (request for turns in found for request in turns if request.sampling.top_p == 1):
        plain = plain_logprobs(make_model(), request.token_ids, request.sampling.temperature or 1.0)
        assert_close(torch.tensor(request.logprobs), plain[-len(request.logprobs) :], atol=1e-5, rtol=0)


@pytest.mark.slow
@torch.no_grad()
def test_a_window_that_hides_whole_blocks() -> None:
    model = of_family("mistral", vocab_size=VOCAB, head_dim=16, sliding_window=40, initializer_range=0.2).eval()
    found = []
    for way in ("alone", "all"):
        batch = Batch(model, **WAYS[way], invariant=True)
        asked = [DecodeRequest(f"{k}", [k] * (3 * BLOCK - k), Sampling(), 9, k, lambda *_: None) for k in range(4)]
        batch.waiting.extend(asked)
        while batch.waiting or batch.running:
            batch.step()
        found.append([(request.token_ids, request.logprobs) for request in asked])
    assert found[0] == found[1]
    for token_ids, logprobs in found[0]:
        assert_close(torch.tensor(logprobs), plain_logprobs(model, token_ids)[-9:], atol=1e-5, rtol=0)


def test_logits_that_are_not_the_model_s_own_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: plain(a, b) * 2)
    with pytest.raises(EngineError, match="would differ by"):
        TiledModel(make_model())


@pytest.mark.slow
@torch.no_grad()
def test_scores_in_tiles_do_not_depend_on_what_else_is_scored() -> None:
    rng = random.Random(0)
    prefix = [rng.randrange(VOCAB) for _ in range(150)]
    branches = [[rng.randrange(VOCAB) for _ in range(length)] for length in (1, 0, 5, 33, 290)]
    starts = [150, 150, 1, 120, 149]
    batch = Batch(make_model(), **WAYS["a few"], invariant=True)
    together: list[list[list[float]]] = []

    def score(step: int) -> None:
        if step < 3:
            together.append(batch.score(prefix, branches, starts))

    conversations(batch, 0, count=6, each=score)
    alone = [
        Batch(make_model(), **WAYS["alone"], invariant=True).score(prefix[:start], [branch], [start])[0]
        for branch, start in zip(branches, starts, strict=True)
    ]
    assert together == [alone] * 3
    for branch, start, scores in zip(branches, starts, alone, strict=True):
        plain = plain_logprobs(make_model(), prefix[:start] + branch)[start - 1 :]
        assert_close(torch.tensor(scores), plain, atol=1e-5, rtol=0)


@pytest.mark.slow
@torch.no_grad()
def test_scores_in_tiles_leave_running_rows_alone() -> None:
    plain, scored = (Batch(make_model(), **WAYS["a few"], invariant=True) for _ in range(2))
    first = conversations(plain, 0, count=8)
    second = conversations(scored, 0, count=8, each=lambda step: [scored.score([step % 90, 1], [[2] * 40], [2])])
    assert reported(first) == reported(second)


@pytest.mark.slow
def test_new_weights_reach_tiles() -> None:
    other, results = make_model(seed=9).state_dict(), []
    for way in ("alone", "all"):
        batch = Batch(make_model(), **WAYS[way], invariant=True)
        with torch.no_grad():
            batch.update(other, 1)
        results.append(conversations(batch, 0, count=8))
    assert reported(results[0]) == reported(results[1])
    request = results[0][1][0]
    plain = plain_logprobs(make_model(seed=9), request.token_ids, request.sampling.temperature or 1.0)
    assert_close(torch.tensor(request.logprobs), plain[-len(request.logprobs) :], atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_close_draw_is_decided_by_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding made a thousand times larger: without the second draw, tokens differ."""
    forward = cached_model.CachedModel.decode

    def rounded(self: Any, *given: Any) -> torch.Tensor:
        logits = forward(self, *given)
        alone = logits.shape[0] == 1 and drawing_again[0]
        generator = torch.Generator().manual_seed(int(1e6 * logits.abs().sum()))
        return logits if alone else logits + 2e-3 * (torch.rand(logits.shape, generator=generator) - 0.5)

    drawing_again = [False]
    redraw = decode.Decoder._redraw

    def marked(self: Any, *given: Any) -> tuple[float, float]:
        drawing_again[0] = True
        try:
            return redraw(self, *given)
        finally:
            drawing_again[0] = False

    monkeypatch.setattr(cached_model.CachedModel, "decode", rounded)
    monkeypatch.setattr(decode.Decoder, "_redraw", marked)
    for close, agree in ((2e-3, True), (0.0, False)):
        monkeypatch.setattr(decode, "CLOSE", close)
        batches = [Batch(make_model(), **WAYS[way]) for way in ("a few", "no caches", "all")]
        results = [said(conversations(batch, order, count=20, top_p=1.0)) for order, batch in enumerate(batches)]
        assert (results[0] == results[1] == results[2]) == agree
        drawn = sum(batch.redrawn for batch in batches)
        assert (0 < drawn < 1000) == agree


async def test_draws_made_again_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "CLOSE", 1e9)
    engine = TorchEngine(make_model())
    completion = await engine.generate([1, 2, 3], Sampling(max_tokens=20, seed=1), "s")
    assert engine.stats["redrawn"] == 20
    await engine.close()
    monkeypatch.setattr(decode, "CLOSE", 0.0)
    plain = TorchEngine(make_model())
    assert (await plain.generate([1, 2, 3], Sampling(max_tokens=20, seed=1), "s")).token_ids == completion.token_ids
    assert plain.stats["redrawn"] == 0
    await plain.close()


async def test_the_recipe_s_key_reaches_the_engine() -> None:
    engine = TorchEngine(make_model(), batch_invariant=True)
    assert isinstance(engine._batch._cached, TiledModel)
    await engine.close()
    given = {"use": "openai", "urls": ["http://a/v1"], "model": "m", "batch_invariant": True}
    with pytest.raises(ValueError, match="openai has no setting 'batch_invariant'"):
        EngineSettings.model_validate(given)


def test_a_gpu_is_refused() -> None:
    with pytest.raises(EngineError, match="proven on CPUs only"), torch.device("meta"):
        TiledModel(make_model())


def test_attention_that_cannot_be_replaced_is_refused() -> None:
    with pytest.raises(EngineError, match="cannot be replaced"):
        TiledModel(make_model(attn_implementation="eager"))


def test_more_than_scaled_dot_products_is_refused() -> None:
    x = torch.zeros((8, 2, 1, 8))
    with pytest.raises(EngineError, match="more than scaled dot products"):
        tiles.tiled_attention_forward(torch.nn.Identity(), x, x, x, torch.zeros((8, 1, 1, BLOCK)), softcap=30.0)


def test_kernels_that_treat_rows_differently_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.nn.functional.linear

    def uneven(x: torch.Tensor, *given: Any) -> torch.Tensor:
        result = plain(x, *given)
        result[-1] *= 1 + 2.0**-20
        return result

    monkeypatch.setattr(torch.nn.functional, "linear", uneven)
    with pytest.raises(EngineError, match="in different ways"):
        TiledModel(make_model())


@pytest.mark.parametrize(("intermediate", "rows"), [(64, [8, 16, 32]), (66, [16, 32]), (51, [32])])
def test_tiles_whose_outputs_end_within_a_vectorised_loop_are_not_used(intermediate: int, rows: list[int]) -> None:
    model = make_model(intermediate_size=intermediate, vocab_size=96)
    if rows_are_alike(model):
        assert [tile.rows for tile in TiledModel(model)._steps] == rows


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "kept"), [(128, (Tile(2, 16), Tile(32, 16))), (32, (STEP,))])
def test_tiles_that_give_other_bits_than_a_step_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tokens: int, kept: tuple[Tile, ...]
) -> None:
    """32: the smaller tile of a prefill has as many tokens as a step, but another shape of attention."""
    model = TiledModel(make_model(vocab_size=104))
    assert (model._prefills, model._steps) == (PREFILLS, (*STEPS, STEP))
    linear, bmm = torch.nn.functional.linear, torch.bmm

    def of_tokens(x: torch.Tensor, *given: Any) -> torch.Tensor:
        return linear(x, *given) * (1 + 2.0**-20 if len(x) == tokens else 1)

    def of_queries(x: torch.Tensor, *given: Any) -> torch.Tensor:
        return bmm(x, *given) * (1 + 2.0**-20 if x.shape[1] > 16 else 1)

    if tokens == STEP.rows:
        monkeypatch.setattr(torch, "bmm", of_queries)
    else:
        monkeypatch.setattr(torch.nn.functional, "linear", of_tokens)
    model.prove()
    assert model._prefills == kept
    others = [
        conversations(Batch(make_model(vocab_size=104), **WAYS[way], invariant=True), 0, count=3)
        for way in ("alone", "all")
    ]
    assert reported(others[0]) == reported(others[1])
