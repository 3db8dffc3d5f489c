"""FSDP2: every rank holds a shard of each weight and of its optimiser state; gradients are summed over ranks.

Full tensors are gathered only on request, for a checkpoint or an engine.

This replaces `torch.distributed.checkpoint.state_dict` (2.13), which unties tied weights, leaves the full model on
every rank's GPU unless it is offloaded to main memory, and steps an optimiser without state, which counts as a step.
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

from agentrl.training.model.policy import Policy, decoder_layers
from agentrl.training.parallel.ranks import Ranks


def shard(policy: Policy, ranks: Ranks) -> None:
    """Shards a policy in place: one unit per decoder layer, one for the rest. All ranks must hold equal weights."""
    mesh = init_device_mesh(policy.model.device.type, (ranks.size,))
    for layer in decoder_layers(policy.model):
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh, reshard_after_forward=True)
    register_fsdp_forward_method(policy, "states")
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            # A sum, not a mean: the token weights are normalised over all ranks already.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo supports nothing else


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor, gathered if it is sharded (then all ranks must call this)."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_state_dict(model: nn.Module, device: torch.device | str | None = None) -> dict[str, Tensor]:
    """The model's state dict with full tensors on rank 0, and with empty tensors on the other ranks if it is sharded.
    Tied weights stay tied: one tensor under several names.

    Args:
        device: the device to which each tensor is moved after gathering; default: it is not moved.
    """
    first: dict[int, str] = {}
    out: dict[str, Tensor] = {}
    tied = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    for name, tensor in model.state_dict().items():
        original = first.setdefault(tied.get(name, id(name)), name)
        out[name] = out[original] if original in out else _for_rank_0(tensor).to(device)
    return out


def load_full_state_dict(model: nn.Module, weights: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Copies rank 0's full tensors into a model's weights (sharded or not), by name. On the other ranks they may be on
    the device "meta": the tensors are sent one by one."""
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(_distribute_like(tensor, own[name], ranks))


def full_optimizer_state_dict(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimiser's state with full tensors, the same for any number of ranks. It is gathered in the main memory of
    rank 0, because it is twice the size of the model."""
    state = optimizer.state_dict()
    entries = {
        index: {name: _for_rank_0(v).cpu() if isinstance(v, DTensor) else v for name, v in entry.items()}
        for index, entry in state["state"].items()
    }
    return {**state, "state": entries}


def load_full_optimizer_state_dict(optimizer: torch.optim.Optimizer, state: dict[str, Any], ranks: Ranks) -> None:
    """Loads the result of `full_optimizer_state_dict`, sharded as the parameters are here.

    The tensors of rank 0 are used, as in `load_full_state_dict`."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    entries = {
        index: {name: _distribute_like(v, parameters[index], ranks) if v.ndim else v for name, v in entry.items()}
        for index, entry in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": entries})


def _for_rank_0(tensor: Tensor) -> Tensor:
    """Gathers a tensor on rank 0. If sharded, other ranks return an empty tensor, to hold one full one at a time."""
    full = full_tensor(tensor)
    return full.new_empty(0) if isinstance(tensor, DTensor) and dist.get_rank() else full


def _distribute_like(tensor: Tensor, pattern: Tensor, ranks: Ranks) -> Tensor:
    """Rank 0's tensor, on the device of `pattern` and sharded like it."""
    here = torch.empty_like(tensor, device=pattern.device) if tensor.is_meta else tensor.to(pattern.device)
    if isinstance(pattern, DTensor):
        return distribute_tensor(here, pattern.device_mesh, pattern.placements)  # rank 0 scatters the shards
    if ranks.size > 1:
        dist.broadcast(here, 0)
    return here
