"""The embedded engine against plain forward passes of the same model."""

from __future__ import annotations

import asyncio
import random
import threading
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from agentrl.engines.embedded.engine import TorchEngine
from agentrl.types.engine import Completion, ContextOverflow, Sampling
from agentrl.types.episode import VersionSpan
from agentrl.types.errors import AgentRLError, DeadPolicy, EngineError
from tests.waiting import until_async

from .conftest import VOCAB, make_model, plain_logprobs


def some_tokens(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(rng.randint(low, high))]


async def some_steps(engine: TorchEngine, number: int) -> None:
    """Waits until the engine has made so many more steps, or has nothing to do."""
    goal = engine.stats["steps"] + number
    await asyncio.sleep(0)
    await until_async(lambda: engine.stats["steps"] >= goal or not engine.stats["running"])


async def play(engine: TorchEngine, name: str, turns: int, system: list[int]) -> list[tuple[list[int], Completion]]:
    """An episode: (prompt, completion) of each turn. All its numbers depend on `name` only."""
    rng = random.Random(name)
    ids = system + some_tokens(rng, 1, 60)
    played = []
    for _ in range(turns):
        sampling = Sampling(
            temperature=rng.choice([0.5, 1.0, 1.7]),
            max_tokens=rng.randint(1, 20),
            stop_token_ids=(3, 5),
            seed=rng.getrandbits(63),
        )
        completion = await engine.generate(ids, sampling, name)
        played.append((ids, completion, sampling))
        ids = ids + completion.token_ids + some_tokens(rng, 1, 30)
        if rng.random() < 0.3:
            await some_steps(engine, rng.randrange(5))
    engine.end_session(name)
    return played


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 5])
async def test_logprobs_are_those_of_a_plain_forward_pass(rows: int) -> None:
    model = make_model()
    engine = TorchEngine(model, max_batch=rows)
    system = some_tokens(random.Random(1), 50, 50)
    episodes = await asyncio.gather(*(play(engine, f"e{k}", 4, system if k % 2 else []) for k in range(40)))
    await engine.close()
    for episode in episodes:
        for prompt, completion, sampling in episode:
            said = completion.token_ids
            plain = plain_logprobs(model, prompt + said, sampling.temperature)[-len(said) :]
            assert_close(torch.tensor(completion.logprobs), plain, atol=1e-5, rtol=0)
            stopped = said[-1] in (3, 5)
            assert completion.finish == ("stop" if stopped else "length")
            assert stopped or len(said) == sampling.max_tokens
            assert not {3, 5} & set(said[:-1])


@pytest.mark.slow
async def test_a_seed_fixes_the_sample_whatever_else_runs() -> None:
    samples = []
    for rows, others in ((1, 0), (16, 0), (16, 25)):
        engine = TorchEngine(make_model(), max_batch=rows)
        noise = [play(engine, f"other{k}", 3, []) for k in range(others)]
        played, *_ = await asyncio.gather(play(engine, "same", 5, []), *noise)
        samples.append([completion.token_ids for _, completion, _ in played])
        await engine.close()
    assert samples[0] == samples[1] == samples[2]


async def test_without_a_seed_samples_differ(engine: TorchEngine) -> None:
    samples = await asyncio.gather(*(engine.generate([1], Sampling(max_tokens=20), f"{k}") for k in range(8)))
    assert len({tuple(sample.token_ids) for sample in samples}) == 8


async def test_greedy_takes_the_most_likely_token(engine: TorchEngine) -> None:
    completion = await engine.generate([1, 2, 3], Sampling(temperature=0, max_tokens=10), "s")
    ids = [1, 2, 3]
    for token in completion.token_ids:
        assert token == int(make_model()(torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert_close(torch.tensor(completion.logprobs), plain_logprobs(make_model(), ids)[-10:], atol=1e-5, rtol=0)


async def test_a_turn_forwards_its_new_tokens_only(engine: TorchEngine) -> None:
    prompt = list(range(10, 50))
    first = await engine.generate(prompt, Sampling(max_tokens=5), "s")
    assert engine.stats["forwarded_tokens"] == 40 + 4
    prompt = prompt + first.token_ids + [7, 8, 9]
    await engine.generate(prompt, Sampling(max_tokens=2), "s")
    # New: the last token that was sampled, three observed, and the first of the two sampled.
    assert engine.stats["forwarded_tokens"] == 44 + 1 + 3 + 1


async def test_an_edited_context_keeps_the_common_prefix(engine: TorchEngine) -> None:
    prompt = list(range(10, 50))
    await engine.generate(prompt, Sampling(max_tokens=1), "s")
    edited = [*prompt[:30], 1, 2, 3]
    completion = await engine.generate(edited, Sampling(max_tokens=1), "s")
    assert engine.stats["forwarded_tokens"] == 40 + 3
    plain = plain_logprobs(make_model(), edited + completion.token_ids)[-1:]
    assert_close(torch.tensor(completion.logprobs), plain, atol=1e-5, rtol=0)


@pytest.mark.slow
async def test_a_group_forwards_its_common_prompt_once() -> None:
    engine = TorchEngine(make_model(), max_batch=32)
    system, tasks = [1] * 40, [[10 + k] * 50 for k in range(4)]
    prompts = [system + task for task in tasks for _ in range(8)]
    done = await asyncio.gather(
        *(engine.generate(p, Sampling(max_tokens=1, seed=k), f"{k}") for k, p in enumerate(prompts))
    )
    # The system message once, each task once, and the last token of each prompt, whose logits are sampled from.
    assert engine.stats["forwarded_tokens"] <= 40 + 4 * 50 + 32
    for prompt, completion in zip(prompts, done, strict=True):
        plain = plain_logprobs(make_model(), prompt + completion.token_ids)[-1:]
        assert_close(torch.tensor(completion.logprobs), plain, atol=1e-5, rtol=0)
    await engine.close()


@pytest.mark.slow
async def test_a_prompt_that_runs_ahead_of_another_session_is_exact(engine: TorchEngine) -> None:
    prompt, sampling = list(range(60)), Sampling(max_tokens=100, seed=1)
    oracle = TorchEngine(make_model())
    will_say = (await oracle.generate(prompt, sampling, "s")).token_ids
    await oracle.close()
    # Prompts that hold what a running session is about to say: they copy what is cached so far.
    running = asyncio.create_task(engine.generate(prompt, sampling, "running"))
    await until_async(lambda: engine.stats["running"] == 1)
    ahead = prompt + will_say
    while not running.done():
        completion = await engine.generate(ahead, Sampling(max_tokens=1), "ahead")
        engine.end_session("ahead")
        plain = plain_logprobs(make_model(), ahead + completion.token_ids)[-1:]
        assert_close(torch.tensor(completion.logprobs), plain, atol=1e-5, rtol=0)
    assert (await running).token_ids == will_say


async def test_idle_sessions_are_dropped_oldest_first_and_come_back() -> None:
    engine = TorchEngine(make_model(), parked_mb=1)
    per_token = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, bytes
    fits = (1 << 20) // (200 * per_token)
    for k in range(fits + 3):
        await engine.generate([k] * 200, Sampling(max_tokens=1), f"s{k}")
    assert engine.stats["parked"] == fits
    assert engine.stats["parked_bytes"] <= 1 << 20
    before = engine.stats["forwarded_tokens"]
    newest = fits + 2
    await engine.generate([newest] * 201, Sampling(max_tokens=1), f"s{newest}")
    assert engine.stats["forwarded_tokens"] - before == 1
    completion = await engine.generate([0] * 201, Sampling(max_tokens=1), "s0")
    assert engine.stats["forwarded_tokens"] - before == 1 + 201
    plain = plain_logprobs(make_model(), [0] * 201 + completion.token_ids)[-1:]
    assert_close(torch.tensor(completion.logprobs), plain, atol=1e-5, rtol=0)
    await engine.close()


async def test_end_session_frees_its_cache(engine: TorchEngine) -> None:
    await engine.generate([1, 2, 3], Sampling(max_tokens=3), "s")
    assert engine.stats["parked"] == 1
    engine.end_session("s")
    engine.end_session("never seen")
    await engine.score([1], [[2]])  # whatever is asked later is done later
    assert engine.stats["parked"] == 0
    assert engine.stats["parked_bytes"] == 0


async def test_the_context_limit(engine: TorchEngine) -> None:
    engine.max_context = 30
    completion = await engine.generate([1] * 25, Sampling(max_tokens=100), "s")
    assert len(completion.token_ids) == 5
    assert completion.finish == "length"
    assert len((await engine.generate([1] * 29, Sampling(max_tokens=100), "s")).token_ids) == 1
    with pytest.raises(ContextOverflow, match="30 tokens"):
        await engine.generate([1] * 30, Sampling(), "s")
    with pytest.raises(ContextOverflow):
        await engine.score([1] * 28, [[1], [1, 2, 3]])


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([], Sampling(), "empty"),
        ([1, VOCAB], Sampling(), f"token {VOCAB}"),
        ([1, -1], Sampling(), "the engine torch takes text only: it is shown an image"),
        ([1], Sampling(max_tokens=0), "max_tokens is 0"),
    ],
)
async def test_a_wrong_request_fails_alone(
    engine: TorchEngine, prompt: list[int], sampling: Sampling, words: str
) -> None:
    good = asyncio.create_task(engine.generate([1, 2], Sampling(max_tokens=30), "good"))
    with pytest.raises(AgentRLError, match=words):
        await engine.generate(prompt, sampling, "bad")
    assert len((await good).token_ids) == 30


async def test_a_cancelled_call_frees_its_row(engine: TorchEngine) -> None:
    long = [asyncio.create_task(engine.generate([k], Sampling(max_tokens=500), f"{k}")) for k in range(40)]
    await until_async(lambda: engine.stats["running"] >= 16)
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    completion = await engine.generate([1, 2], Sampling(max_tokens=3), "next")
    assert_close(
        torch.tensor(completion.logprobs),
        plain_logprobs(make_model(), [1, 2, *completion.token_ids])[-3:],
        atol=1e-5,
        rtol=0,
    )
    stats = engine.stats
    assert (stats["running"], stats["waiting"]) == (0, 0)
    assert stats["steps"] < 500


async def test_cancelling_some_leaves_the_others_exact(engine: TorchEngine) -> None:
    tasks = [asyncio.create_task(engine.generate([k, 1], Sampling(max_tokens=60), f"{k}")) for k in range(12)]
    await until_async(lambda: engine.stats["steps"] >= 5)
    for task in tasks[::3]:
        task.cancel()
    for k, result in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
        if isinstance(result, Completion):
            plain = plain_logprobs(make_model(), [k, 1, *result.token_ids])[-60:]
            assert_close(torch.tensor(result.logprobs), plain, atol=1e-5, rtol=0)


async def test_update_changes_the_version_and_the_answers(engine: TorchEngine) -> None:
    prompt, sampling = list(range(40)), Sampling(max_tokens=6, seed=1)
    old = await engine.generate(prompt, sampling, "s")
    assert old.versions == [VersionSpan(0, 0, 6)]
    other = make_model(seed=9)
    await engine.update(other.state_dict(), 7)
    new = await engine.generate(prompt, sampling, "s")
    assert new.versions == [VersionSpan(7, 0, 6)]
    assert new.token_ids != old.token_ids
    plain = plain_logprobs(other, prompt + new.token_ids)[-6:]
    assert_close(torch.tensor(new.logprobs), plain, atol=1e-5, rtol=0)


@pytest.mark.slow
async def test_an_update_in_flight_splits_the_completion(engine: TorchEngine) -> None:
    prompts = [[k, 2, 3] for k in range(20)]  # more than rows: some wait
    tasks = [asyncio.create_task(engine.generate(p, Sampling(max_tokens=200), f"{p}")) for p in prompts]
    await until_async(lambda: engine.stats["steps"] >= 20)
    other = make_model(seed=9)
    await engine.update(other, 1)
    split = 0
    for prompt, completion in zip(prompts, await asyncio.gather(*tasks), strict=True):
        plain = {0: plain_logprobs(make_model(), prompt + completion.token_ids)[-200:]}
        plain[1] = plain_logprobs(other, prompt + completion.token_ids)[-200:]
        spans = completion.versions
        assert [spans[0].start, spans[-1].end] == [0, 200]
        assert all(a.end == b.start and a.end > a.start for a, b in pairwise(spans))
        for span in spans:
            ours = torch.tensor(completion.logprobs[span.start : span.end])
            assert_close(ours, plain[span.version][span.start : span.end], atol=2e-5, rtol=0)
        split += len(spans) == 2
    assert split >= 10


async def test_wrong_weights_are_refused_and_the_old_ones_stay(engine: TorchEngine) -> None:
    before = await engine.generate([1, 2], Sampling(max_tokens=5, seed=1), "a")
    wrong_shape = make_model(vocab_size=VOCAB + 1).state_dict()
    lacking = {k: v for k, v in make_model(seed=9).state_dict().items() if "norm" not in k}
    unknown = {**make_model(seed=9).state_dict(), "what": torch.zeros(1)}
    for weights, words in ((wrong_shape, "other shapes"), (lacking, "lack"), (unknown, "unknown 'what'")):
        with pytest.raises(EngineError, match=words):
            await engine.update(weights, 1)
    after = await engine.generate([1, 2], Sampling(max_tokens=5, seed=1), "b")
    assert (after.token_ids, after.logprobs) == (before.token_ids, before.logprobs)
    tied = {k: v for k, v in make_model(seed=9).state_dict().items() if k != "lm_head.weight"}
    await engine.update(tied, 2)
    assert engine.stats["version"] == 2


@pytest.mark.slow
async def test_score_equals_plain_forward_passes(engine: TorchEngine) -> None:
    rng = random.Random(0)
    prefix = some_tokens(rng, 60, 60)
    continuations = [some_tokens(rng, 1, 12) for _ in range(9)] + [[], [4]]
    running = asyncio.create_task(engine.generate(prefix[:50], Sampling(max_tokens=50), "running"))
    await asyncio.sleep(0)
    scores = await engine.score(prefix, continuations)
    for continuation, score in zip(continuations, scores, strict=True):
        plain = plain_logprobs(make_model(), prefix + continuation)[len(prefix) - 1 :]
        assert_close(torch.tensor(score), plain, atol=1e-5, rtol=0)
    starts = [rng.randint(1, 60) for _ in continuations]
    inside = await engine.score(prefix, continuations, starts)
    for continuation, start, score in zip(continuations, starts, inside, strict=True):
        plain = plain_logprobs(make_model(), prefix[:start] + continuation)[start - 1 :]
        assert_close(torch.tensor(score), plain, atol=1e-5, rtol=0)
    completion = await running
    plain = plain_logprobs(make_model(), prefix[:50] + completion.token_ids)[-50:]
    assert_close(torch.tensor(completion.logprobs), plain, atol=1e-5, rtol=0)
    assert await engine.score([3], []) == []


async def test_score_reuses_the_cache_of_the_episode(engine: TorchEngine) -> None:
    prompt = list(range(90))
    await engine.generate(prompt, Sampling(max_tokens=1), "s")
    before = engine.stats["forwarded_tokens"]
    await engine.score(prompt, [[1, 2, 3], [4, 5]])
    assert engine.stats["forwarded_tokens"] - before == 3 + 2  # each but for its last, and the prefix's last
    await engine.generate([*prompt, 1], Sampling(max_tokens=1), "s")
    assert engine.stats["forwarded_tokens"] - before == 5 + 1  # what was scored did not cost the session its cache


@pytest.mark.slow
async def test_turns_scores_updates_and_cancellations_at_once() -> None:
    """Whatever happens beside it, each token's log-probability is that of the version its span names."""
    models = {version: make_model(seed=version) for version in range(4)}
    engine = TorchEngine(make_model(seed=0), max_batch=12)
    system = [1] * 45

    seen: set[int] = set()

    async def episode(name: str) -> int:
        rng = random.Random(name)
        ids, exact = system + some_tokens(rng, 1, 40), 0
        for _ in range(5):
            call = engine.generate(ids, Sampling(max_tokens=rng.randint(1, 30), top_p=1.0), name)
            if rng.random() < 0.2:
                asked = asyncio.create_task(call)
                await some_steps(engine, rng.randrange(10))
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                continue
            completion = await call
            said = completion.token_ids
            for span in completion.versions:
                plain = plain_logprobs(models[span.version], ids + said)[-len(said) :][span.start : span.end]
                assert_close(torch.tensor(completion.logprobs[span.start : span.end]), plain, atol=2e-5, rtol=0)
                exact += span.end - span.start
                seen.add(span.version)
            ids = ids + said + some_tokens(rng, 1, 10)
        engine.end_session(name)
        return exact

    async def learner() -> None:
        for version in (1, 2, 3):
            await until_async(lambda version=version: engine.stats["steps"] >= 20 * version)
            await engine.update(models[version], version)
            (score,) = await engine.score(system, [[2, 3]])
            assert_close(torch.tensor(score), plain_logprobs(models[version], [*system, 2, 3])[-2:], atol=2e-5, rtol=0)

    counts, _ = await asyncio.gather(asyncio.gather(*(episode(f"e{k}") for k in range(40))), learner())
    assert sum(counts) > 1000
    assert seen == {0, 1, 2, 3}
    await engine.score([1], [[2]])
    assert engine.stats["running"] == engine.stats["waiting"] == engine.stats["parked"] == 0
    await engine.close()


async def test_a_failing_step_fails_its_calls_and_the_engine_goes_on() -> None:
    model = make_model()
    engine = TorchEngine(model, max_batch=4)
    broken = threading.Event()

    def fault(*_: Any) -> None:
        if broken.is_set():
            raise RuntimeError("out of memory, say")

    model.get_input_embeddings().register_forward_pre_hook(fault)
    tasks = [asyncio.create_task(engine.generate([k], Sampling(max_tokens=400), f"{k}")) for k in range(10)]
    await until_async(lambda: engine.stats["steps"] >= 3)
    broken.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, EngineError) and "out of memory" in str(result) for result in results)
    assert len({id(result) for result in results}) == 10
    with pytest.raises(EngineError, match="out of memory"):
        await engine.score([1], [[2]])
    broken.clear()
    completion = await engine.generate([1, 2], Sampling(max_tokens=3), "1")
    plain = plain_logprobs(model, [1, 2, *completion.token_ids])[-3:]
    assert_close(torch.tensor(completion.logprobs), plain, atol=1e-5, rtol=0)
    await engine.close()


async def test_memory_that_runs_out_for_a_score_leaves_no_half_grown_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    engine = TorchEngine(model, max_batch=4)
    running = asyncio.create_task(engine.generate([1], Sampling(max_tokens=400), "runs"))
    await until_async(lambda: engine.stats["steps"] >= 3)
    grown, plain = [0], torch.Tensor.new_zeros

    def new_zeros(self: torch.Tensor, size: Any, **settings: Any) -> torch.Tensor:
        if len(size) == 4 and threading.current_thread().name == "agentrl-engine":
            grown[0] += 1
            if grown[0] == 3:  # the second layer, of two memories each
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return plain(self, size, **settings)

    monkeypatch.setattr(torch.Tensor, "new_zeros", new_zeros)
    with pytest.raises(EngineError, match="out of memory"):
        await engine.score([1] * 400, [[2]])
    with pytest.raises(EngineError, match="out of memory"):
        await running
    assert len({memory.shape for pair in engine._batch.arena._layers for memory in pair}) == 1
    completion = await engine.generate([1, 2], Sampling(max_tokens=3), "next")
    (scored,) = await engine.score([1, 2], [completion.token_ids])
    expected = plain_logprobs(model, [1, 2, *completion.token_ids])[-3:]
    assert_close(torch.tensor(completion.logprobs), expected, atol=1e-5, rtol=0)
    assert_close(torch.tensor(scored), expected, atol=1e-5, rtol=0)
    await engine.close()


async def test_a_fault_while_requests_enter_loses_none_of_them() -> None:
    model = make_model()
    engine = TorchEngine(model, max_batch=8)

    def fault(*_: Any) -> None:
        raise RuntimeError("bang")

    model.get_input_embeddings().register_forward_pre_hook(fault)
    prompts = [[1] * 50 + [k] * 50 for k in range(20)]  # some lead, some are held back, some wait
    calls = (engine.generate(p, Sampling(), f"{k}") for k, p in enumerate(prompts))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, EngineError) for result in results)
    await engine.close()


async def test_broken_weights_are_an_error_and_leave_no_trace(engine: TorchEngine) -> None:
    good = make_model().state_dict()
    await engine.update({name: torch.full_like(value, torch.nan) for name, value in good.items()}, 1)
    with pytest.raises(DeadPolicy, match=r"not finite \(version 1\)"):
        await engine.generate([1] * 20, Sampling(max_tokens=20), "s")
    await engine.update(good, 2)
    completion = await engine.generate([1, 2], Sampling(max_tokens=3), "s")
    plain = plain_logprobs(make_model(), [1, 2, *completion.token_ids])[-3:]
    assert_close(torch.tensor(completion.logprobs), plain, atol=1e-5, rtol=0)


async def test_close_fails_who_waits_and_joins_the_thread() -> None:
    engine = TorchEngine(make_model(), max_batch=2)
    tasks = [asyncio.create_task(engine.generate([k], Sampling(max_tokens=500), f"{k}")) for k in range(6)]
    await until_async(lambda: engine.stats["running"] == 2)
    await engine.close()
    await engine.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, EngineError) and "closed" in str(result) for result in results)
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([1], Sampling(), "s")
    engine.end_session("s")


async def test_a_dead_worker_says_so() -> None:
    model = make_model()
    engine = TorchEngine(model)

    def die(*_: Any) -> None:
        raise SystemExit("killed")

    model.get_input_embeddings().register_forward_pre_hook(die)
    with pytest.raises(EngineError, match="died: SystemExit: killed"):
        await engine.generate([1], Sampling(), "s")
    with pytest.raises(EngineError, match="died"):
        await engine.generate([1], Sampling(), "s")
    await engine.close()


def test_the_engine_serves_one_event_loop_after_another() -> None:
    engine = TorchEngine(make_model())
    for _ in range(2):
        completion = asyncio.run(engine.generate([1, 2], Sampling(max_tokens=3, seed=0), "s"))
        assert len(completion.token_ids) == 3
    asyncio.run(engine.close())


async def test_bfloat16_runs_and_its_logprobs_are_close() -> None:
    model = make_model(initializer_range=0.05).to(torch.bfloat16)
    engine = TorchEngine(model)
    completion = await engine.generate(list(range(30)), Sampling(max_tokens=20, seed=0), "s")
    plain = plain_logprobs(model, list(range(30)) + completion.token_ids)[-20:]
    assert_close(torch.tensor(completion.logprobs), plain, atol=0.05, rtol=0)
    await engine.close()
