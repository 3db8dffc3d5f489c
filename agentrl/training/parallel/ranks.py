"""The processes of one training: one, or several ranks with a shard of the model each (FSDP2).

Rank 0 is the driver: it plays the episodes and writes the run directory. All ranks run its trainer calls
(`collective`), each on its share of the packs; the loop of the other ranks is in `training/spmd.py`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from agentrl.training.model.packing import Floats, Layout, Pack, pack
from agentrl.types.errors import RankFailed, RankUnreachable
from agentrl.types.sample import TrainingSample

PATIENCE = timedelta(hours=24)
"""Timeout of collectives: the other ranks wait for the next call while rank 0 plays episodes."""

SMALLER = (
    "lower train.token_budget and train.logits_mb, or set train.activation_checkpointing: the same command continues "
    "with them. For a new run also train.precision, train.lora, train.trainable; or more ranks"
)
"""Remedy when memory is short. The first three settings change how a step is computed, not its result."""

P = ParamSpec("P")
R = TypeVar("R")


class Ranks:
    """This process and its group.

    Attributes:
        rank, size: index of this process, and number of processes. With one process (rank 0, size 1) nothing here
            communicates.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._depth = 0

    @classmethod
    def from_torchrun(cls) -> Ranks:
        """Joins the group of processes that torchrun started; a single process without torchrun."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        if not dist.is_initialized():
            backend = "gloo"
            if torch.cuda.is_available():
                torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
                backend = "cpu:gloo,cuda:nccl"
            dist.init_process_group(backend, timeout=PATIENCE)
        return cls(dist.get_rank(), dist.get_world_size())

    @classmethod
    def rendezvous(cls, rank: int, size: int, store: Any, *, cuda: bool, device: int = 0) -> Ranks:
        """Joins the other processes through a store.

        Args:
            cuda: whether the model is on GPUs.
            device: index among the GPUs that are visible to this process.
        """
        if cuda:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE
        )
        return cls(rank, size)

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's value on every rank. The value is pickled.

        Raises:
            RankUnreachable: a rank has ended.
        """
        if self.size == 1:
            return value
        box = [value]
        with named_failures("waiting for the next call"):
            dist.broadcast_object_list(box, 0, device=torch.device("cpu"))
        return box[0]

    def shutdown(self) -> None:
        """Ends the group, on rank 0: no further calls follow.

        Raises:
            RankUnreachable: a rank has ended. The process group is not destroyed.
        """
        if self.size > 1:
            self.broadcast(None)
            with named_failures("shutting down"):
                dist.barrier()
            dist.destroy_process_group()

    @contextmanager
    def broadcast_call(self, role: str, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[None]:
        """Broadcasts the call to the other ranks, unless it is nested in a call that was broadcast already. Tensors are
        sent as shapes (on the device "meta"): an optimiser's state is too large to be pickled.

        Args:
            role: the object of the method: "trainer", or an auxiliary model.

        Raises:
            RankFailed: this rank is out of memory.
            RankUnreachable: another rank has ended.
        """
        if not self._depth and self.rank == 0:
            sent = {key: value for key, value in kwargs.items() if not callable(value)}
            self.broadcast((role, name, *tree_map_only(torch.Tensor, _shape_of, (tuple(args), sent))))
        self._depth += 1
        try:
            with named_failures(f"{role}.{name}"):
                yield
        finally:
            self._depth -= 1

    def packs(
        self, samples: Sequence[TrainingSample], token_budget: int, layout: Layout = "tree"
    ) -> list[tuple[Pack, bool]]:
        """This rank's share of the packs, each with a flag: False marks a filler.

        All ranks get the same number, because shards are gathered pack by pack. A rank with fewer packs gets fillers of
        two tokens, which do not count. A single process gets all packs.
        """
        whole = pack(samples, token_budget, layout)
        if self.size == 1:
            return [(each, True) for each in whole]
        even = -(-sum(len(each.token_ids) for each in whole) // self.size)
        shares: list[list[Pack]] = [[] for _ in range(self.size)]
        for each in sorted(pack(samples, min(token_budget, even), layout), key=lambda each: -len(each.token_ids)):
            min(shares, key=lambda share: sum(len(other.token_ids) for other in share)).append(each)
        rounds = max(map(len, shares))
        mine = [(each, True) for each in shares[self.rank]]
        return mine + [(_stand_in(layout), False)] * (rounds - len(mine))

    def all_reduce(self, arrays: Sequence[Floats]) -> None:
        """Replaces each array by its sum over ranks."""
        if self.size == 1 or not arrays:
            return
        flat = torch.from_numpy(np.concatenate(arrays))
        dist.all_reduce(flat)
        ends = np.cumsum([len(array) for array in arrays])[:-1]
        for array, part in zip(arrays, np.split(flat.numpy(), ends), strict=True):
            array[:] = part

    def all_reduce_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replaces the gradient of each unsharded parameter by its sum over ranks."""
        if self.size > 1:
            for parameter in parameters:
                dist.all_reduce(parameter.grad)

    def all_reduce_by_name(self, values: dict[str, float]) -> dict[str, float]:
        """Sums over ranks by name. A rank may lack a name."""
        if self.size == 1:
            return values
        found: list[dict[str, float]] = [{} for _ in range(self.size)]
        dist.all_gather_object(found, values)
        names = dict.fromkeys(name for each in found for name in each)
        return {name: sum(each.get(name, 0.0) for each in found) for name in names}


@contextmanager
def named_failures(where: str) -> Iterator[None]:
    """Turns torch's error for missing memory into `RankFailed`, and that for a lost rank into `RankUnreachable`."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition("\n")[0].partition(" This is typically")[0]  # without gloo's guess
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in said:
            raise RankFailed(f"out of memory, {where}: {said}", remedy=SMALLER) from error
        if isinstance(error, dist.DistError) or "/gloo/" in said:
            raise RankUnreachable(
                f"the other trainer ranks cannot be reached, {where}: {said}",
                remedy="if one has ended, its own output says why; the same command resumes from the last checkpoint",
            ) from error
        raise


class OnRanks(Protocol):
    """An object with collective methods. `role`: its name, which is the same on all ranks."""

    ranks: Ranks
    role: str


Self = TypeVar("Self", bound=OnRanks)


def collective(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Decorates a method that all ranks run when rank 0 calls it, with the same arguments (without functions)."""

    def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.ranks.broadcast_call(self.role, method.__name__, args, kwargs):
            return method(self, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


def _shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor without its contents (meta device); scalar tensors unchanged."""
    return tensor.to("meta") if tensor.ndim else tensor


def _stand_in(layout: Layout) -> Pack:
    nothing = np.zeros(2, np.float32)
    sample = TrainingSample(np.zeros(2, np.int64), np.array([False, True]), nothing, nothing, "", "", 0)
    return pack([sample], 2, layout)[0]
