"""Trainer ranks in other places: this process is the first of them, the others follow it until it dismisses them.

The others are objects like rollout workers are. All meet at a store that this process keeps, as those of torchrun do.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from agentrl.config.recipe import Recipe
from agentrl.distributed.handle import Handle, Launcher, ResourceRequest, WorkerDied, spawn_within
from agentrl.distributed.launchers import check_launcher, open_launcher
from agentrl.models.load import on_cuda
from agentrl.train.compute_thread import in_thread
from agentrl.train.parallel.ranks import Ranks
from agentrl.train.spmd import worker_loop
from agentrl.types.errors import RankDied, RankFailed, RecipeError

_SIOCGIFADDR = 0x8915
"""Linux: the address of an interface."""

TOLD_S = 15.0
"""When a rank's end makes a collective fail here, so long after that its place tells how it ended."""


class RankWorker:
    """A trainer rank in another place.

    Args:
        device: which of the GPUs that it sees.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._following = False

    async def run(self, rank: int, size: int, address: tuple[str, int], start_s: float, cuda: bool) -> None:
        """Meets the others at `address` within `start_s`, and does what the first one tells until it is dismissed."""

        def work() -> None:
            self._following = True
            try:
                _speak_towards(address)
                store = TCPStore(*address, size, is_master=False, timeout=timedelta(seconds=start_s))
                worker_loop(Ranks.rendezvous(rank, size, store, cuda=cuda, device=self._device))
            except BaseException:
                if dist.is_initialized():
                    dist.destroy_process_group()  # so that the others learn of it
                raise
            finally:
                self._following = False

        await in_thread(work)

    async def close(self) -> None:
        """Ends the process if the first rank went without a word: a collective cannot be called off."""
        if self._following:
            os._exit(1)


class GpuReservation:
    """Keeps the first rank's GPUs reserved, which that uses in its own process."""

    async def gpus(self) -> str:
        """Their numbers, as `CUDA_VISIBLE_DEVICES` has them."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    async def close(self) -> None:
        """Nothing is open."""


class LaunchedRanks:
    """The ranks that this process has placed; itself, if there are no others.

    Args:
        ranks: this process among them.
        following: the others' tasks.
        restarts: for `RankDied`.
    """

    def __init__(self, ranks: Ranks, following: Sequence[asyncio.Task[Any]], restarts: int = 0) -> None:
        self.ranks, self._following, self._restarts = ranks, following, restarts

    async def train(self, training: Coroutine[Any, Any, None]) -> None:
        """Awaits the training, and dismisses the other ranks.

        Raises:
            RankDied: one of them ended before.
            Exception: what the training raised.
        """
        if not self._following:
            await training
            return self.ranks.shutdown()
        task = asyncio.create_task(training)
        try:
            await asyncio.wait([task, *self._following], return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or isinstance(task.exception(), RankFailed):
                await self._fail(task)
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])
        self.ranks.shutdown()
        await asyncio.wait(self._following, timeout=TOLD_S)

    async def _fail(self, task: asyncio.Task[None]) -> NoReturn:
        """A rank has ended, or cannot be reached: says why."""
        if (death := await self._death()) is not None:
            raise RankDied(f"ended before the training did: {death}", restarts=self._restarts) from death
        # All live. What failed on one rank alone is told by that one; what failed on all, by this one.
        await asyncio.wait([task], timeout=TOLD_S)
        if task.done() and not isinstance(error := task.exception(), RankFailed | None):
            raise error
        failures = [each.exception() for each in self._following if each.done()]
        raise next(filter(None, failures), None) or RankFailed("a trainer rank has left the training")

    async def _death(self) -> WorkerDied | None:
        """How one of them died; places know it a little later than whoever talked to it."""
        end = time.monotonic() + TOLD_S
        while True:
            for each in self._following:
                if each.done() and isinstance(error := each.exception(), WorkerDied):
                    return error
            going_on = [each for each in self._following if not each.done()]
            if not going_on or (left := end - time.monotonic()) <= 0:
                return None
            await asyncio.wait(going_on, timeout=left, return_when=asyncio.FIRST_COMPLETED)


@asynccontextmanager
async def trainer_ranks(recipe: Recipe, joined: Ranks) -> AsyncIterator[LaunchedRanks]:
    """The processes that train: those that torchrun started, those that the recipe asks for, or this one alone.

    Args:
        joined: this process among those of torchrun.

    Raises:
        RecipeError: there are both.
        AgentRLError: they do not fit on the cluster.
        RankDied: one ended before all had met.
    """
    scale = recipe.scale
    if joined.size > 1 and scale.trainer_ranks > 1:
        raise RecipeError(
            "torchrun has started the ranks already",
            place="scale.trainer_ranks",
            remedy="start without torchrun, or set scale.trainer_ranks=1",
        )
    check_launcher(recipe)
    gpus = _gpus_each(recipe)
    if scale.use == "ray" and not gpus and not scale.rank_cpus:
        raise RecipeError(
            "a rank takes neither CPUs nor GPUs", place="scale.rank_cpus", remedy="leave it out, or say scale.rank_gpus"
        )
    if scale.trainer_ranks == 1 and not (scale.use == "ray" and gpus and joined.size == 1):
        yield LaunchedRanks(joined, [])
        return
    request = ResourceRequest(
        "scale.trainer_ranks", scale.trainer_ranks, cpus=scale.rank_cpus, gpus=gpus, spread=False, beside_driver=True
    )
    environment = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME")}
    launcher = await open_launcher(recipe, request)
    handles: list[Handle] = []
    following: list[asyncio.Task[Any]] = []
    try:
        if scale.use == "ray":
            handles.append(await _reserve_gpus(launcher, gpus))
        yield await _launch_ranks(recipe, launcher, handles, following)
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*(handle.close() for handle in handles), *following, return_exceptions=True)
        await _leave_group()
        await launcher.close()
        for name, value in environment.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


async def _reserve_gpus(launcher: Launcher, gpus: float) -> Handle:
    """Reserves this process's part of the room, and sees to it that it uses no other GPUs."""
    seat = await launcher.spawn("rank 0", GpuReservation)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = await seat.call("gpus")
    return seat


async def _launch_ranks(
    recipe: Recipe, launcher: Launcher, handles: list[Handle], following: list[asyncio.Task[Any]]
) -> LaunchedRanks:
    """Puts the other ranks, and waits until all have met."""
    size, start_s, restarts = recipe.scale.trainer_ranks, recipe.scale.start_s, recipe.scale.restarts
    if size == 1:
        return LaunchedRanks(Ranks(), [])
    cuda = on_cuda(recipe.required_model)
    _speak_towards((launcher.host, 9))
    store = TCPStore(launcher.host, 0, size, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=start_s))
    try:
        for rank in range(1, size):
            # Ray shows each its own GPUs only.
            device = 0 if recipe.scale.use == "ray" else rank
            handle = await spawn_within(start_s, launcher, f"trainer rank {rank}", RankWorker, device)
            handles.append(handle)
            call = handle.call("run", rank, size, (launcher.host, store.port), start_s, cuda)
            following.append(asyncio.create_task(call))
    except WorkerDied as death:
        raise RankDied(f"did not start: {death}", restarts=restarts) from death
    meeting = asyncio.create_task(in_thread(lambda: Ranks.rendezvous(0, size, store, cuda=cuda)))
    await asyncio.wait([meeting, *following], timeout=start_s, return_when=asyncio.FIRST_COMPLETED)
    for each in following:
        if each.done() and isinstance(error := each.exception(), WorkerDied):
            raise RankDied(f"did not start: {error}", restarts=restarts) from error
        if each.done():
            await each
    if not meeting.done():
        raise RankFailed(
            f"the trainer ranks have not met within {start_s:g} s",
            place="scale.trainer_ranks",
            remedy="their machines must reach each other at all ports; GLOO_SOCKET_IFNAME names the interface",
        )
    return LaunchedRanks(await meeting, following, restarts)


async def _leave_group() -> None:
    """If the ranks were not dismissed: what still held the group would abort the process at its end."""
    if dist.is_initialized():
        with suppress(TimeoutError):
            await asyncio.wait_for(in_thread(dist.destroy_process_group), TOLD_S)


def _speak_towards(address: tuple[str, int]) -> None:
    """Has gloo use the interface towards `address`; by itself it takes that of the host's name, often loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if found[20:24] == own:
                    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _gpus_each(recipe: Recipe) -> float:
    given = recipe.scale.rank_gpus
    return float(on_cuda(recipe.required_model)) if given is None else given
