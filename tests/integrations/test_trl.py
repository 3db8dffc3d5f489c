"""TRL's trainers on our episodes: the same tokens, masks, credit, and the same loss or gradient as ours."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="pip install 'agentrl-framework[trl]'")

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, GRPOConfig, SFTConfig, SFTTrainer

from agentrl.config.train import TrainSettings
from agentrl.engines.embedded.engine import TorchEngine
from agentrl.integrations.trl.async_grpo import EngineTransfer, EpisodeWorker, turn_samples
from agentrl.integrations.trl.datasets import preference_dataset, sft_dataset, sft_rows
from agentrl.integrations.trl.dpo import EpisodeDPOTrainer
from agentrl.integrations.trl.grpo import EpisodeGRPOTrainer, stored_rollouts
from agentrl.training.stages.course import CROSS_ENTROPY
from agentrl.training.trainer import Trainer
from agentrl.types.engine import Sampling
from agentrl.types.errors import TrainError
from tests.training.make import VOCABULARY, episode, llama, make_rows, padded_logprobs

pytestmark = pytest.mark.slow

SHARED = dict(report_to=[], use_cpu=True, bf16=False, disable_tqdm=True, logging_strategy="no", save_strategy="no")


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{number}": number for number in range(VOCABULARY)}
    plain = Tokenizer(models.WordLevel(words, unk_token="w2"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="w0", eos_token="w1", unk_token="w2")


def episodes(groups: int = 2, size: int = 4):
    rng = np.random.default_rng(0)
    out = []
    for group in range(groups):
        prompt = rng.integers(3, VOCABULARY, 9).tolist()
        for member in range(size):
            played = episode(f"g{group}/e{member}", prompt, 3, rng)
            out.append(
                type(played)(**{**{f: getattr(played, f) for f in played.__struct_fields__}, "reward": member / 2})
            )
    return out


def whole_rows(**sizes):
    """Rows of episodes without branches."""
    return [row for row in make_rows(**sizes) if not row.episode_id.endswith(("e0", "e3"))]


def test_sft_trains_the_sampled_tokens_and_no_other(tokenizer, tmp_path):
    rows = sft_rows(episodes(), min_reward=0.5)
    assert {row.episode_id[-1] for row in rows} == {"1", "2", "3"}
    model = llama()
    ours = Trainer(llama(), TrainSettings()).fit(rows, CROSS_ENTROPY, lr=1e-3)
    args = SFTConfig(str(tmp_path), max_length=None, per_device_train_batch_size=len(rows), max_steps=1, **SHARED)
    trainer = SFTTrainer(model, args, train_dataset=sft_dataset(rows), processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    trained = batch["labels"][batch["labels"] != -100]
    assert sorted(trained.tolist()) == sorted(t for row in rows for t in row.token_ids[row.loss_mask].tolist())
    assert trainer.train().training_loss == pytest.approx(ours["loss"], abs=1e-5)


def test_an_empty_data_set_is_refused():
    with pytest.raises(TrainError, match="no rows"):
        sft_dataset(sft_rows(episodes(), min_reward=99))
    with pytest.raises(TrainError, match="none of 1 groups"):
        preference_dataset(episodes(groups=1, size=1))


def test_preferences_compare_what_the_policy_sampled(tokenizer, tmp_path):
    data = preference_dataset(episodes())
    assert len(data) == 2
    args = DPOConfig(str(tmp_path), max_length=None, per_device_train_batch_size=2, max_steps=2, **SHARED)
    model = llama()
    trainer = EpisodeDPOTrainer(
        model, ref_model=llama(seed=1), args=args, train_dataset=data, processing_class=tokenizer
    )
    batch = next(iter(trainer.get_train_dataloader()))
    with torch.no_grad():
        loss = trainer.compute_loss(model, dict(batch)).item()
    by_name = {(e.group_id, e.reward): e for e in episodes()}
    rows = {
        which: sft_rows([by_name[group, reward] for group in ("g0", "g1")])
        for which, reward in (("chosen", 1.5), ("rejected", 0.0))
    }

    def sums(policy, which):
        with torch.no_grad():
            parts = padded_logprobs(policy, rows[which]).split([int(row.loss_mask.sum()) for row in rows[which]])
        return torch.stack([part.sum() for part in parts])

    logits = sum(
        sign * (sums(model, which) - sums(llama(seed=1), which)) for which, sign in (("chosen", 1), ("rejected", -1))
    )
    assert loss == pytest.approx(-functional.logsigmoid(args.beta * logits).mean().item(), abs=1e-4)
    trainer.train()


def test_grpo_takes_our_credit_token_by_token(tokenizer, tmp_path):
    """TRL's gradient is ours: clipped ratio to the engine's log-probabilities, mean over all tokens."""
    model, rows = llama(), whole_rows(groups=2, size=6)
    behaviour = Trainer(model, TrainSettings()).logprobs(rows)
    rng = np.random.default_rng(1)
    rows = [
        dataclasses.replace(
            row, behaviour_logprob=(lp + row.loss_mask * rng.normal(0, 0.2, len(lp))).astype(np.float32)
        )
        for row, lp in zip(rows, behaviour, strict=True)
    ]
    size = len(rows) // 2
    data, rollouts = stored_rollouts(rows)
    args = GRPOConfig(
        str(tmp_path), per_device_train_batch_size=len(rows), num_generations=size, max_steps=1, epsilon=0.2,
        max_completion_length=256, temperature=1.0, loss_type="dapo", max_grad_norm=1e9, learning_rate=1e-3, **SHARED,
    )  # fmt: skip
    trainer = EpisodeGRPOTrainer(model, args=args, train_dataset=data, processing_class=tokenizer, rollouts=rollouts)
    kept = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: kept.__setitem__(name, p.grad.clone()))
    trainer.train()
    theirs = dict(kept)
    kept.clear()
    own = llama()
    for name, parameter in own.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: kept.__setitem__(name, p.grad.clone()))
    settings = TrainSettings(old_logprobs="engine", minibatch=len(rows), loss="ppo_clip", max_grad_norm=1e9)
    metrics = Trainer(own, settings).update(rows, seed=0)
    assert metrics["clip_fraction"] > 0
    ours, trls = (torch.cat([found[name].flatten() for name in theirs]) for found in (kept, theirs))
    assert (ours - trls).norm() < 1e-5 * ours.norm()


def test_grpo_refuses_what_it_cannot_take():
    with pytest.raises(TrainError, match="several rows"):
        stored_rollouts(make_rows())


def test_a_sample_a_turn_covers_every_trained_token_once():
    (row, *_) = make_rows()
    samples = turn_samples(row, version=3, group=0)
    assert [s.advantage for s in samples] == [float(row.advantage[start]) for _, start, _ in row.turn_spans]
    covered = sum(np.pad(s.completion_mask, (0, len(row.token_ids) - len(s.input_ids))) for s in samples)
    assert np.array_equal(covered, row.loss_mask)
    _, start, end = next(span for span in row.turn_spans if span[2] - span[1] > 1)
    for place in (start, end - 1):
        uneven = row.advantage.copy()
        uneven[place] += 1
        with pytest.raises(TrainError, match="different advantages"):
            turn_samples(dataclasses.replace(row, advantage=uneven), 0, 0)


def test_the_worker_stops_waits_and_tells_of_failures():
    rows = make_rows()
    worker = EpisodeWorker(lambda version: rows, capacity=4)
    worker.start()
    sample = worker.rollout_buffer.get()
    assert sample.model_version == 0
    worker.check_health(stale_after_s=1e6)
    worker.stop()
    assert not worker._thread.is_alive()

    def broken(version):
        raise RuntimeError("no environment")

    worker = EpisodeWorker(broken)
    worker.start()
    worker._thread.join()
    with pytest.raises(TrainError, match="no environment"):
        worker.check_health(1e6)


async def test_weights_reach_our_engine():
    engine, other = TorchEngine(llama()), llama(seed=1)
    transfer = EngineTransfer(engine, asyncio.get_running_loop())
    await asyncio.to_thread(transfer.send_weights, iter(other.named_parameters()))
    found = await engine.generate([5, 6, 7], Sampling(temperature=0, max_tokens=1), "s")
    await engine.close()
    with torch.no_grad():
        assert found.token_ids[0] == other(torch.tensor([[5, 6, 7]])).logits[0, -1].argmax().item()


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *_, softmax_scale=None, causal=True, **__):
    """flash_attn_varlen_func's meaning in plain torch, for the CPU."""
    out = []
    for q0, q1, k0, k1 in zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False):
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril((k1 - k0) - (q1 - q0))
        parts = (x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        attended = functional.scaled_dot_product_attention(*parts, seen, scale=softmax_scale, enable_gqa=True)
        out.append(attended[0].transpose(0, 1))
    return torch.cat(out)


def test_async_grpo_trains_on_our_turns(tokenizer, tmp_path, monkeypatch):
    """AsyncGRPOTrainer itself, its CUDA kernel replaced by what it computes: a few steps on rows that we push."""
    from types import SimpleNamespace

    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing

    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=varlen))
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    model = llama()
    model.save_pretrained(tmp_path / "model")
    rows = make_rows()
    rows = [
        dataclasses.replace(row, behaviour_logprob=lp)
        for row, lp in zip(rows, Trainer(model, TrainSettings()).logprobs(rows), strict=True)
    ]
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    engine = asyncio.run_coroutine_threadsafe(_engine(), loop).result()
    worker = EpisodeWorker(lambda version: rows, capacity=64)
    args = AsyncGRPOConfig(
        str(tmp_path / "out"), per_device_train_batch_size=8, max_steps=2, learning_rate=1e-3, token_budget=512,
        **{**SHARED, "logging_strategy": "steps", "logging_steps": 1},
    )  # fmt: skip
    trainer = AsyncGRPOTrainer(
        str(tmp_path / "model"), args=args, train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=tokenizer, rollout_worker=worker, weight_transfer=EngineTransfer(engine, loop),
    )  # fmt: skip
    trainer.train()
    weights = {name: p.detach() for name, p in trainer.model.named_parameters()}
    assert not torch.equal(weights["model.norm.weight"], model.model.norm.weight)
    assert torch.equal(engine._batch.model.model.norm.weight, weights["model.norm.weight"])
    asyncio.run_coroutine_threadsafe(engine.close(), loop).result()
    loop.call_soon_threadsafe(loop.stop)


async def _engine() -> TorchEngine:
    return TorchEngine(llama())
