"""A process group of one rank with a sharded policy beside a plain one: `python -m tests.training.one_rank DEVICE`."""

from __future__ import annotations

import sys
import tempfile

import torch
import torch.distributed as dist

from agentrl.training.model.packing import pack
from agentrl.training.model.policy import Policy
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.shards import (
    full_optimizer_state_dict,
    full_state_dict,
    full_tensor,
    load_full_optimizer_state_dict,
    load_full_state_dict,
    shard,
)

from .make import llama, make_rows


def step(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """One optimiser step. Returns the whole gradient of each weight."""
    rows, device = make_rows(), policy.model.device
    for packed in pack(rows, 60):
        logprob, _ = policy(packed)
        (logprob * torch.from_numpy(packed.gather([row.advantage for row in rows])).to(device)).sum().backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    gradients = {name: full_tensor(p.grad).cpu().clone() for name, p in policy.model.named_parameters()}
    optimizer.step()
    optimizer.zero_grad()
    return gradients


def near(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], error: float) -> None:
    """Returns True if tensors are equal up to an error, relative to their norm. A GPU sums in any order."""
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        other = theirs[name].cpu()
        assert (tensor.cpu() - other).norm() <= error * other.norm(), name


def main(device: str) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks.rendezvous(0, 1, dist.FileStore(f"{folder}/store", 1), cuda=device == "cuda")
        for precision in ("float32", "bfloat16"):
            policies, optimizers, gradients = [], [], []
            for sharded in (False, True):
                policy = Policy(llama(tie_word_embeddings=True).to(device), precision=precision)  # type: ignore[arg-type]
                if sharded:
                    shard(policy, ranks)
                policies.append(policy)
                optimizers.append(torch.optim.AdamW(policy.model.parameters(), lr=1e-3, fused=True))
                gradients.append(step(policy, optimizers[-1]))
            error = {"float32": 1e-5, "bfloat16": 0.02}[precision]
            near(*gradients, error)
            near(full_state_dict(policies[1].model, device="cpu"), full_state_dict(policies[0].model), 5e-3)
            state = full_optimizer_state_dict(optimizers[1])
            assert all(
                not tensor.is_cuda for each in state["state"].values() for tensor in each.values() if tensor.ndim
            )
            load_full_optimizer_state_dict(optimizers[1], state, ranks)
            load_full_state_dict(policies[1].model, full_state_dict(policies[0].model), ranks)
            near(*(step(policy, optimizer) for policy, optimizer in zip(policies, optimizers, strict=True)), error)
            near(full_state_dict(policies[1].model, device="cpu"), full_state_dict(policies[0].model), 5e-3)
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
