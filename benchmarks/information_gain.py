"""What scoring the gold answer before every turn costs, beside the episode's own generation.

    python -m benchmarks.information_gain

A Llama of 12 million parameters plays one episode of 10 turns: 200 tokens of prompt, 40 sampled and 120 observed a
turn. Then its 10 answers are scored in one call (ours), and with one full prompt pass a turn, as one would do it
without an engine that shares prefixes. One thread. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl.engines.embedded.engine import TorchEngine
from agentrl.types.engine import Sampling

TURNS, PROMPT, SAMPLED, OBSERVED, ANSWER = 10, 200, 40, 120, 16


async def measure() -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8000, hidden_size=256, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=8,
            num_key_value_heads=2, max_position_embeddings=4096,
        )
    )  # fmt: skip
    engine = TorchEngine(model)
    rng = np.random.default_rng(0)

    def tokens(n: int) -> list[int]:
        return rng.integers(0, 8000, n).tolist()

    context, starts = tokens(PROMPT), []
    began, before = time.perf_counter(), engine.stats["forwarded_tokens"]
    for turn in range(TURNS):
        starts.append(len(context))
        context += (await engine.generate(context, Sampling(max_tokens=SAMPLED, seed=turn), "episode")).token_ids
        if turn < TURNS - 1:
            context += tokens(OBSERVED)
    rolled, generated = time.perf_counter(), engine.stats["forwarded_tokens"]
    answer = tokens(ANSWER)
    together = await engine.score(context[: starts[-1]], [answer] * TURNS, starts)
    shared, scored = time.perf_counter(), engine.stats["forwarded_tokens"]
    engine.end_session("episode")
    apart = [(await engine.score(context[:start], [answer]))[0] for start in starts]
    alone = time.perf_counter()
    await engine.close()
    worst = float(np.abs(np.array(together) - np.array(apart)).max())
    assert worst < 1e-4, worst
    return {
        "rollout_s": round(rolled - began, 3),
        "gain_s": round(shared - rolled, 3),
        "gain_share": round((shared - rolled) / (shared - began), 4),
        "full_passes_s": round(alone - shared, 3),
        "tokens": {
            "rollout": generated - before,
            "gain": scored - generated,
            "full_passes": sum(starts) + TURNS * (ANSWER - 1),
        },
        "largest_difference": worst,
    }


if __name__ == "__main__":
    found = asyncio.run(measure())
    print(f"{'rollout':<28}{found['rollout_s']:>8} s{found['tokens']['rollout']:>8} tokens forwarded")
    print(f"{'gold answers, one call':<28}{found['gain_s']:>8} s{found['tokens']['gain']:>8}")
    print(f"{'gold answers, a pass a turn':<28}{found['full_passes_s']:>8} s{found['tokens']['full_passes']:>8}")
    print(json.dumps(found))
