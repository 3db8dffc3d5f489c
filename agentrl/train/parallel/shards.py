"""FSDP2: every rank holds a shard of each weight and of its optimiser state; gradients are summed over ranks.

Whole tensors appear only where somebody asks for them: for a checkpoint, for an engine.

Our own, not `torch.distributed.checkpoint.state_dict` (2.13): that unties tied weights, leaves the whole model on every
rank's GPU unless it goes to main memory, and steps an optimiser that has no state yet, which counts as a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from agentrl.train.model.policy import Policy, decoder_layers
from agentrl.train.parallel.ranks import Ranks


def shard(policy: Policy, ranks: Ranks) -> None:
    """Shards a policy in place: a unit for each decoder layer, one for the rest. Equal weights on all ranks before."""
    mesh = init_device_mesh(policy.model.device.type, (ranks.size,))
    for layer in decoder_layers(policy.model):
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh, reshard_after_forward=True)
    register_fsdp_forward_method(policy, "states")
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            # A sum, not a mean: the tokens' weights already add up over all ranks.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo can do nothing else


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, or all shards of it together (a call that all ranks make)."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_state_dict(model: nn.Module, device: torch.device | str | None = None) -> dict[str, Tensor]:
    """The model's state dict with whole tensors, for rank 0; the others get names with nothing under them. Tied weights
    stay tied: one tensor under several names.

    Args:
        device: where each goes as soon as it is whole; default: it stays.
    """
    first: dict[int, str] = {}
    out: dict[str, Tensor] = {}
    tied = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    for name, tensor in model.state_dict().items():
        original = first.setdefault(tied.get(name, id(name)), name)
        out[name] = out[original] if original in out else _for_rank_0(tensor).to(device)
    return out


def load_full_state_dict(model: nn.Module, weights: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Writes rank 0's whole tensors into a model's weights, sharded or not, by name. On the other ranks they may be
    on the device "meta": each is handed over when its turn comes."""
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(_distribute_like(tensor, own[name], ranks))


def full_optimizer_state_dict(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's state with whole tensors, the same whatever the number of ranks: gathered in the main memory of
    rank 0, since it is twice the model."""
    state = optimizer.state_dict()
    entries = {
        index: {name: _for_rank_0(v).cpu() if isinstance(v, DTensor) else v for name, v in entry.items()}
        for index, entry in state["state"].items()
    }
    return {**state, "state": entries}


def load_full_optimizer_state_dict(optimizer: torch.optim.Optimizer, state: dict[str, Any], ranks: Ranks) -> None:
    """Loads what `full_optimizer_state_dict` returned on rank 0, and shards it as the parameters are sharded here.

    Tensors are those of rank 0, as in `load_full_state_dict`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {
        index: {name: _distribute_like(v, parameters[index], ranks) if v.ndim else v for name, v in entry.items()}
        for index, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": entries})


def _for_rank_0(tensor: Tensor) -> Tensor:
    """As `full_tensor`; where there are shards, an empty tensor on the other ranks, which so hold one at a time."""
    full = full_tensor(tensor)
    return full.new_empty(0) if isinstance(tensor, DTensor) and dist.get_rank() else full


def _distribute_like(tensor: Tensor, pattern: Tensor, ranks: Ranks) -> Tensor:
    """Rank 0's tensor, on the pattern's device and sharded as that is."""
    here = torch.empty_like(tensor, device=pattern.device) if tensor.is_meta else tensor.to(pattern.device)
    if isinstance(pattern, DTensor):
        return distribute_tensor(here, pattern.device_mesh, pattern.placements)  # rank 0 hands out the shards
    if ranks.size > 1:
        dist.broadcast(here, 0)
    return here
