"""Captured decode steps give what steps that are run give. No GPU here: a recorded capture stands in for CUDA's."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.engine import EngineSettings
from agentrl.config.recipe import Recipe
from agentrl.engines.embedded import engine as torch_engine
from agentrl.engines.embedded import kv_cache
from agentrl.engines.embedded.batch import Batch
from agentrl.engines.embedded.cached_model import CachedModel
from agentrl.engines.embedded.decode import OUTPUTS, Ask, Shape, run_step
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.engines.embedded.graphs import MOST_FAILURES, PAUSE, CudaCapture, Graphs, rung
from agentrl.engines.embedded.request import Request
from agentrl.rollout.engines import _torch
from agentrl.types.engine import Sampling
from agentrl.types.errors import EngineError
from benchmarks import decode as benchmark
from benchmarks.random_models import random_model

from . import test_torch
from .conftest import VOCAB, make_model, plain_logprobs
from .recorded import Checking, Forbidden, RecordedCapture


def requests(count: int, seed: int = 0, limits: tuple[int, int] = (1, 120)) -> list[Request]:
    """Ragged prompts, completions of many lengths, and all ways to draw."""
    rng = random.Random(seed)
    made = []
    for k in range(count):
        sampling = Sampling(temperature=rng.choice([0, 0.5, 1.0, 1.7]), top_p=rng.choice([1.0, 0.8]))
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 90))]
        made.append(Request(f"{k}", prompt, sampling, rng.randint(*limits), seed + k, lambda *_: None))
    return made


@torch.no_grad()
def play(batch: Batch, asked: list[Request], each: Callable[[int], None] = lambda _: None) -> list[Request]:
    """Runs them all, six more let in every five steps; `each` is called with the number of the step."""
    todo, steps = list(asked), 0
    while todo or batch.waiting or batch.running:
        if steps % 5 == 0:
            batch.waiting.extend(todo[:6])
            del todo[:6]
        each(steps)
        batch.step()
        steps += 1
    return asked


def batches(**changes: Any) -> tuple[Batch, Batch, RecordedCapture]:
    """One that runs its steps, and one that captures them."""
    capture = RecordedCapture()
    eager, captured = (
        Batch(make_model(**changes), max_batch=20, parked_bytes=1 << 20, capture=how) for how in (None, capture)
    )
    return eager, captured, capture


def same(left: list[Request], right: list[Request], within: float = 1e-5) -> None:
    for a, b in zip(left, right, strict=True):
        assert a.token_ids == b.token_ids
        assert_close(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=within, rtol=0)
        assert a.versions == b.versions


def test_rows_come_and_go_and_grow() -> None:
    eager, captured, capture = batches()
    same(play(eager, requests(60)), play(captured, requests(60)))
    assert captured.graphs is not None
    assert captured.graphs.replayed > captured.steps / 2
    assert capture.captures >= 6  # several rungs of rows and lengths
    assert captured.graphs.captured <= capture.captures


def test_what_was_captured_on_an_arena_that_moved_is_dropped() -> None:
    eager, captured, capture = batches(max_position_embeddings=4096)
    seen: list[int] = []

    def grow(batch: Batch, step: int) -> None:
        if step == 40:
            seen.append(capture.captures)
            batch.arena.reserve(1, 1500)

    same(*(play(batch, requests(20, limits=(80, 120)), partial(grow, batch)) for batch in (eager, captured)))
    assert seen[0] == 0
    assert seen[1] > 0
    assert captured.graphs is not None
    assert 0 < captured.graphs.captured <= capture.captures - seen[1]


def test_updates_and_scores_in_between() -> None:
    other = make_model(seed=9).state_dict()
    eager, captured, _ = batches()
    scores: dict[Batch, list[Any]] = {eager: [], captured: []}

    def each(batch: Batch, step: int) -> None:
        if step % 7 == 3:
            scores[batch] += batch.score([k % VOCAB for k in range(step + 2)], [[1, 2], [3]], [step + 2, 1])
        if step == 50:
            place = batch.arena.moves
            batch.update(other, 1)
            assert (batch.arena.moves == place) == (batch is captured)

    same(*(play(batch, requests(40), partial(each, batch)) for batch in (eager, captured)))
    for a, b in zip(*scores.values(), strict=True):
        assert_close(torch.tensor(a), torch.tensor(b), atol=1e-5, rtol=0)
    assert captured.graphs is not None
    assert captured.graphs.replayed > captured.steps / 2


def test_rows_that_pad_a_shape_do_nothing_of_who_had_them_before() -> None:
    eager, captured, _ = batches(max_position_embeddings=2048)
    for batch in (eager, captured):
        play(batch, [Request(f"{k}", [k] * 1100, Sampling(), 3, k, lambda *_: None) for k in range(4)])
        batch.abort(EngineError("the memory is gone"))
    # Three rows in a shape of four, in an arena that ends before the fourth row's old place.
    same(*(play(batch, requests(3)) for batch in (eager, captured)))


def recorded(model: Any, capture: None, **settings: Any) -> Batch:
    """The batch of an engine on a GPU."""
    return Batch(model, capture=RecordedCapture(), **settings)


async def test_turns_scores_updates_and_cancellations_in_a_whole_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_engine, "Batch", recorded)
    await test_torch.test_turns_scores_updates_and_cancellations_at_once()


@torch.no_grad()
def test_after_a_replay_that_failed_captures_start_anew() -> None:
    eager, captured, capture = batches()
    for batch in (eager, captured):
        batch.waiting.extend(requests(8, limits=(50, 60)))
        for _ in range(5):
            batch.step()
    assert captured.graphs is not None
    assert capture.captures == captured.graphs.captured > 0

    def fail(*_: Any) -> None:
        raise RuntimeError("an illegal memory access, say")

    for shape in captured.graphs._replays:
        captured.graphs._replays[shape] = fail
    with pytest.raises(RuntimeError, match="illegal"):
        captured.step()
    for batch in (eager, captured):
        batch.abort(EngineError("the step failed"))
    before = capture.captures
    same(*(play(batch, requests(20, seed=1)) for batch in (eager, captured)))
    assert capture.captures > before


async def test_the_engine_counts_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_engine, "Batch", recorded)
    engine = TorchEngine(make_model())
    await engine.generate([1, 2, 3], Sampling(max_tokens=20), "s")
    assert (engine.stats["steps"], engine.stats["replayed_steps"]) == (20, 19)
    await engine.close()


async def test_weights_that_were_broken_leave_no_trace() -> None:
    capture = RecordedCapture()
    batch = Batch(make_model(), max_batch=4, parked_bytes=1 << 20, capture=capture)
    good = {name: value.clone() for name, value in make_model().state_dict().items()}
    with torch.no_grad():
        batch.score([1] * 40, [[2, 3]], [40])
        batch.update({name: torch.full_like(value, torch.nan) for name, value in good.items()}, 1)
        batch.score([1] * 40, [[2, 3]], [40])
        batch.update(good, 2)
    (request,) = play(batch, [Request("s", [1, 2], Sampling(), 20, 0, lambda *_: None)])
    assert capture.captures == 1
    expected = plain_logprobs(make_model(), request.token_ids)[-20:]
    assert_close(torch.tensor(request.logprobs), expected, atol=1e-5, rtol=0)


def dynamic_rope() -> Any:
    """A model whose positions are scaled by the longest one: its forward pass reads a value."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return make_model(rope_parameters=rope, max_position_embeddings=512)


def test_a_step_that_cannot_be_captured_is_run(caplog: pytest.LogCaptureFixture) -> None:
    capture = RecordedCapture()
    batch = Batch(dynamic_rope(), max_batch=20, parked_bytes=1 << 20, capture=capture)
    eager = Batch(dynamic_rope(), max_batch=20, parked_bytes=1 << 20)
    same(play(eager, requests(10)), play(batch, requests(10)))
    assert batch.graphs is not None
    assert batch.graphs.captured == batch.graphs.replayed == 0
    assert [record.message for record in caplog.records] == [
        "decoding goes on without CUDA graphs, a step cannot be captured: aten._local_scalar_dense.default"
    ]
    assert capture.tries == 0  # not even tried: on CUDA, a capture that fails costs more than the try


def counted(graphs: Graphs, shape: int, times: int = 1) -> int:
    """How often a step was run as it is, replays aside."""
    buffer, before = torch.zeros(()), graphs.replayed
    for _ in range(times):
        graphs.run(shape, 0, lambda: buffer.add_(1))
    return times - (graphs.replayed - before)


def test_a_capture_that_failed_is_tried_again_later() -> None:
    capture = RecordedCapture(failing=[2])
    graphs = Graphs(capture)
    counted(graphs, 1, 2)
    assert graphs.captured == 1
    assert counted(graphs, 2, PAUSE) == PAUSE
    assert (capture.tries, graphs.captured, capture.forgotten) == (2, 1, 0)  # the other one stays
    assert counted(graphs, 1) == 0
    assert counted(graphs, 2, 2) == 0
    assert (capture.tries, graphs.captured) == (3, 2)


def test_captures_that_fail_again_and_again_are_given_up(caplog: pytest.LogCaptureFixture) -> None:
    capture = RecordedCapture(failing=range(2, 100))
    graphs = Graphs(capture)
    counted(graphs, 1, 2)
    counted(graphs, 2, 2 * PAUSE + 1)
    assert (capture.tries, graphs.captured) == (MOST_FAILURES, 1)
    counted(graphs, 2, 5 * PAUSE)
    assert (capture.tries, graphs.captured) == (MOST_FAILURES + 1, 0)
    assert counted(graphs, 1) == 1
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_the_capture_that_was_unused_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.engines.embedded.graphs.MOST_CAPTURES", 2)
    graphs = Graphs(RecordedCapture())
    for shape in (1, 2):
        counted(graphs, shape, 2)
    assert counted(graphs, 1) == 0
    counted(graphs, 3, 2)
    assert graphs.captured == 2
    assert [counted(graphs, shape) for shape in (1, 3, 2)] == [0, 0, 1]


class FakeCuda:
    """Captures and allocator as torch 2.13 has them (CUDAGraph.cpp, CUDACachingAllocator.cpp), without a device.

    One capture at a time. Its end leaves the allocator capturing if the stream's capture was broken meanwhile.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capturing: list[Any] = []  # the allocator's part
        self.released: list[Any] = []
        self.streams = self.pools = self.most = 0
        self.broken = False
        fake = self

        class Graph:
            def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
                assert pool not in fake.capturing
                fake.capturing.append(pool)
                fake.streams += 1
                fake.most = max(fake.most, fake.streams)
                self.pool = pool

            def capture_end(self) -> None:
                fake.streams -= 1
                if fake.broken:
                    raise RuntimeError("operation failed due to a previous error during capture")
                fake.capturing.remove(self.pool)

            def replay(self) -> None:
                pass

        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device_index=device.index))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", self._pool)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self._end, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda _, pool: self.released.append(pool), raising=False)

    def _pool(self) -> tuple[int, int]:
        self.pools += 1
        return 0, self.pools

    def _end(self, device: int, pool: Any) -> None:
        if pool not in self.capturing:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.capturing.remove(pool)


def test_a_capture_that_failed_leaves_the_allocator_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    capture = CudaCapture(torch.device("cuda", 0))

    def breaks() -> None:
        cuda.broken = True
        raise ValueError("reads a value")

    with pytest.raises(RuntimeError, match="previous error") as failure:
        capture(breaks)
    assert isinstance(failure.value.__context__, ValueError)
    assert cuda.capturing == []
    assert cuda.released == [(0, 1)]
    cuda.broken = False
    with pytest.raises(ValueError, match="by itself"):
        capture(lambda: exec("raise ValueError('by itself')"))
    assert cuda.capturing == []
    assert cuda.released == [(0, 1)]  # torch's own affair, where the capture ended
    capture(lambda: None)()
    assert cuda.capturing == []


def test_two_engines_capture_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    captures = [CudaCapture(torch.device("cuda", 0)) for _ in range(2)]
    threads = [threading.Thread(target=capture, args=[partial(time.sleep, 0.02)]) for capture in captures]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cuda.most == 1


ALL = Shape(rows=8, length=64, tempered=True, nucleus=True, greedy=True)


def step_without_contents(make: Callable[[], Any]) -> None:
    """A step on a device that is not the host and has no values to read."""
    shapes = kv_cache.cached_shapes(make())
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_cache, "cached_shapes", lambda model: shapes)  # a pass on "meta" might have to read values
        with torch.device("meta"):
            model = CachedModel(make().to(torch.bfloat16).eval(), settled=True)
            inputs, outputs = (torch.zeros(size, dtype=torch.float64) for size in ((len(Ask), 8), (8, OUTPUTS)))
        model.arena.reserve(8, 64)
        with Checking():
            run_step(model, inputs, outputs, ALL)


def of_family(name: str, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 600, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
    }  # fmt: skip
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**sizes, **changes}))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "smollm3"])
@pytest.mark.parametrize("kv_heads", [2, 4])
def test_the_step_does_nothing_that_a_capture_forbids(family: str, kv_heads: int) -> None:
    step_without_contents(partial(of_family, family, num_key_value_heads=kv_heads))


def test_what_a_capture_forbids_is_found() -> None:
    with pytest.raises(Forbidden, match="_local_scalar_dense"):
        step_without_contents(dynamic_rope)
    with torch.no_grad(), Checking():
        for forbidden in (
            lambda x: x[x > 0],
            lambda x: x.nonzero(),
            lambda x: x.sum().item(),
            lambda x: bool((x > 0).any()),
            lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
            lambda x: x.index_put_((x > 0,), torch.zeros(())),
        ):
            with pytest.raises(Forbidden):
                forbidden(torch.ones(3))
        with pytest.raises(Forbidden, match="between"):
            torch.ones(3).to("meta")


def test_a_replay_repeats_operations_and_not_python() -> None:
    """What the tests above rest on: the recorded capture is as blind as CUDA's."""
    factor, source, target = [2.0], torch.ones(3), torch.zeros(3)

    def step() -> None:
        target.add_((source * factor[0]).view(3, 1)[:, 0])

    replay = RecordedCapture()(step)
    assert target.tolist() == [0, 0, 0]  # recording ran nothing
    factor[0] = 100.0
    source.fill_(5.0)
    replay()
    replay()
    assert target.tolist() == [20.0, 20.0, 20.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    """The real capture. Shapes that differ take other kernels there, hence the wider bound."""
    eager, captured = (
        Batch(make_model().to("cuda"), max_batch=20, parked_bytes=1 << 20, capture=how)
        for how in (None, CudaCapture(torch.device("cuda")))
    )
    same(play(eager, requests(60)), play(captured, requests(60)), within=1e-4)
    assert captured.graphs is not None
    assert captured.graphs.replayed > captured.steps / 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_capture_that_failed_leaves_nothing_behind() -> None:
    capture, x = CudaCapture(torch.device("cuda")), torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError):
        capture(lambda: x.add_(x.sum().item()))
    assert not torch.cuda.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="not currently recording"):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), capture._pool)
    capture.forget()
    replay = capture(lambda: x.add_(1))
    replay()
    assert x.tolist() == [2, 2, 2]


def test_the_benchmark_measures_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "CudaCapture", lambda device: RecordedCapture())
    model = random_model("tiny", torch.float32, "cpu")
    with torch.no_grad():
        eager, graphs = (benchmark.measure(model, 3, 60, 12, graphs=how) for how in (False, True))
    assert eager.keys() < graphs.keys()
    assert graphs["captured"] == 2  # up to 64 tokens and up to 128
    assert graphs["replayed_of_steps"] > 0.8
    assert min(found["tokens_per_s"] for found in (eager, graphs)) > 0


def test_the_recipe_s_key_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(torch_engine, "TorchEngine", lambda model, **settings: made.append(settings))
    for engine in ({}, {"cuda_graphs": False}):
        recipe = Recipe.model_validate({"name": "r", "tasks": {"jsonl": "t", "prompt": "{q}"}, "engine": engine})
        _torch(recipe, None, 10, ByteTokenizer())
    assert [settings["cuda_graphs"] for settings in made] == [True, False]
    with pytest.raises(ValueError, match="'cuda_graphs' belongs to torch"):
        EngineSettings(use="vllm", cuda_graphs=False)


def test_rungs_waste_a_quarter_at_most() -> None:
    assert [rung(size, 8) for size in (1, 8, 9, 64, 65, 100, 128, 129, 257)] == [8, 8, 16, 64, 80, 112, 128, 160, 320]
    for size in range(32, 5000):
        assert size <= rung(size, 8) <= 1.25 * size
    assert len({rung(size, 64) for size in range(1, 32_769)}) < 40
