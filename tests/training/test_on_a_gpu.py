"""Parts that differ on a GPU: the kernel of attention, the optimiser's, NCCL. Each test runs on the CPU, too."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl.config.train import TrainSettings
from agentrl.training import checkpoint
from agentrl.training.model.attention import TreeAttention, tree_attention_forward
from agentrl.training.model.packing import Pack, pack
from agentrl.training.model.policy import Policy, choose_layout
from agentrl.training.trainer import Trainer
from tests.devices import DEVICES, no_gpu

from .make import SIZES, llama, make_rows, padded_logprobs, qwen3, turn_rows, write_checkpoint

WIDE = {"hidden_size": 128, "intermediate_size": 160, "head_dim": 32}
ERROR = {torch.float32: 1e-4, torch.bfloat16: 0.03}
"""By type: the allowed norm of an error, relative to the result's. On a CPU float32 keeps within a tenth of it."""

ON = pytest.mark.parametrize("device", DEVICES)
PRECISIONS = pytest.mark.parametrize(
    ("device", "precision"),
    [("cpu", "bfloat16"), *(pytest.param("cuda", name, marks=no_gpu) for name in ("float32", "bfloat16"))],
)
"""float32 on the CPU is what they are compared with."""


def mistral() -> MistralForCausalLM:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(**{**SIZES, **WIDE}, sliding_window=7))


def mixture() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**SIZES, **WIDE, **sizes}))


FAMILIES = {
    "llama": lambda: llama(**WIDE),
    "qwen3": lambda: qwen3(**WIDE),
    "mistral, a window of 7": mistral,
    "qwen3-moe": mixture,
}


def along_paths(q: Any, k: Any, v: Any, packed: Pack, window: int | None) -> torch.Tensor:
    """Attention by its definition: a token sees the tokens of its path, of those the last `window`."""
    out, groups = [], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    for segment in packed.segments:
        path = torch.from_numpy(segment.path)
        for at in range(segment.start, segment.end):
            end = len(path) - (segment.end - at) + 1
            seen = path[max(0, end - window) if window else 0 : end]
            weights = (torch.einsum("hd,khd->hk", q[at], k[seen]) / q.shape[2] ** 0.5).softmax(-1)
            out.append(torch.einsum("hk,khd->hd", weights, v[seen]))
    return torch.stack(out)


@pytest.mark.slow
@ON
@pytest.mark.parametrize("dtype", ERROR, ids=str)
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 64), (14, 2, 64), (3, 3, 128), (8, 1, 32)])
def test_attention_sees_the_path(device: str, dtype: torch.dtype, window: int, heads: int, kv_heads: int, width: int):
    """Outputs and gradients, against double precision on what the type can hold."""
    (packed,) = pack(make_rows(), 10**6)
    torch.manual_seed(0)
    exact = [
        torch.randn(len(packed.token_ids), n, width).to(dtype).double().requires_grad_()
        for n in (heads, kv_heads, kv_heads)
    ]
    slope = torch.randn(len(packed.token_ids), heads, width, dtype=torch.float64)
    wanted = along_paths(*exact, packed, window)
    (wanted * slope).sum().backward()
    given = [x.detach().to(dtype).to(device).transpose(0, 1)[None].requires_grad_() for x in exact]
    tree = TreeAttention.of(packed, torch.device(device), dtype)
    assert (tree.ragged is not None) == (device == "cuda" and dtype == torch.bfloat16), "the kernel that is tested"
    found = tree_attention_forward(torch.nn.Identity(), *given, None, tree=tree, sliding_window=window)[0][0]
    (found.cpu().double() * slope).sum().backward()
    pairs = [
        (found.cpu(), wanted),
        *((g.grad[0].transpose(0, 1).cpu(), x.grad) for g, x in zip(given, exact, strict=True)),
    ]
    for ours, theirs in pairs:
        assert (ours.double() - theirs).norm() < ERROR[dtype] * theirs.norm()


@PRECISIONS
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_equals_one_padded_row_per_turn(device: str, precision: str, family: str):
    """The reference is the model's own attention, in double precision on the CPU."""
    model, rows = FAMILIES[family]().eval(), make_rows(groups=2, size=4)
    exact = copy.deepcopy(model).double()
    exact.config._experts_implementation = "eager"  # the others do not take double precision
    turns = turn_rows(rows)
    logprob = padded_logprobs(exact, turns)
    (logprob * torch.from_numpy(np.concatenate([row.advantage[row.loss_mask] for row in turns]))).sum().backward()
    policy = Policy(model.to(device), precision=precision)
    assert choose_layout(policy, "auto") is None
    for packed in pack(rows, 100):
        advantages = torch.from_numpy(packed.gather([row.advantage for row in rows])).to(device)
        (policy(packed)[0] * advantages).sum().backward()
    ours, theirs = (torch.cat([p.grad.flatten().cpu().double() for p in m.parameters()]) for m in (model, exact))
    assert (ours - theirs).norm() < 2 * ERROR[getattr(torch, precision)] * theirs.norm()


UPDATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "small parts": {"token_budget": 60, "activation_checkpointing": True, "logits_mb": 1},
    "by rows": {"packing": "rows"},
    "adapters": {"lora": {"rank": 4}},
    "top layer": {"trainable": {"top_layers": 1}},
    "entropy, KL, sequences": {"loss": "gspo", "entropy_bonus": 0.01, "kl": {"coef": 0.1}, "minibatch": 3, "epochs": 2},
    "critic": {"critic": {"steps": 2}},
}


@pytest.mark.slow
@PRECISIONS
@pytest.mark.parametrize("case", UPDATES)
def test_updates_are_those_of_float32(device: str, precision: str, case: str):
    """Two updates beside float32 ones on the CPU. The learning rate is so small that steps with another sign change
    little."""
    rows = make_rows(groups=2, size=4)
    metrics, logprobs = [], []
    for where, kind in (("cpu", "float32"), (device, precision)):
        settings = TrainSettings(**{"lr": 1e-5, "minibatch": 100, "precision": kind, **UPDATES[case]})
        reference = llama(seed=1, **WIDE).to(where) if settings.kl is not None else None
        trainer = Trainer(llama(**WIDE).eval().to(where), settings, reference=reference)
        metrics.append([trainer.update(rows, seed) for seed in range(2)][-1])
        logprobs.append(np.concatenate(trainer.logprobs(rows)))
        assert all(tensor.device.type == "cpu" for tensor in trainer.weights(device="cpu").values())
    near = {"float32": 1e-3, "bfloat16": 0.2}[precision]
    for name in ("loss", "grad_norm", "entropy"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], rel=near, abs=near), name
    assert np.abs(logprobs[0] - logprobs[1]).max() < near


@ON
def test_a_checkpoint_continues_the_training(device: str, tmp_path: Path):
    lr, rows = 1e-3, make_rows()
    settings = TrainSettings(lr=lr, precision="bfloat16")
    trainer = Trainer(llama(**WIDE).eval().to(device), settings)
    trainer.update(rows, seed=0)
    folder = tmp_path / "it-00001"
    weights = trainer.weights(device="cpu")
    write_checkpoint(folder, trainer.model, None, trainer.state_dict(), {}, weights=weights)
    again = Trainer(type(trainer.model).from_pretrained(folder).eval().to(device), settings)
    again.load_state_dict(checkpoint.load_state(folder).trainer)
    for each in (trainer, again):
        each.update(rows, seed=1)
    # A GPU sums in any order, and a gradient that is next to nothing may take the other sign.
    apart = [(tensor - trainer.weights()[name]).abs().flatten() for name, tensor in again.weights().items()]
    assert torch.cat(apart).mean() < 0.02 * lr
    assert {tensor.device.type for tensor in again.weights().values()} == {device}


@pytest.mark.slow
@ON
def test_one_rank_with_shards_is_one_without(device: str):
    """FSDP2 over NCCL (gloo on a CPU): gradients, whole weights, the optimiser's state taken out and put back in."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.one_rank", device],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
