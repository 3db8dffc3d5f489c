"""Launched trainer ranks: this process is rank 0, and the launcher spawns the others.

The other ranks run `worker_loop` until rank 0 shuts them down. All ranks meet at a TCPStore in this process.
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
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from agentrl.config.scale import ScaleSettings
from agentrl.distributed.handle import Handle, Launcher, ResourceRequest, WorkerDied, spawn_within
from agentrl.distributed.launchers import check_launcher, open_launcher
from agentrl.distributed.ray_cluster import GpuReservation
from agentrl.training.compute_thread import in_thread
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.spmd import worker_loop
from agentrl.types.errors import RankDied, RankFailed, RankUnreachable, RecipeError

_SIOCGIFADDR = 0x8915
"""ioctl of Linux for the address of a network interface."""

TOLD_S = 15.0
"""Timeout in seconds for the cause after a rank died: a collective fails here before the launcher reports the death."""


class RankWorker:
    """A trainer rank other than rank 0.

    Args:
        device: index of its GPU among those that it sees.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._following = False

    async def run(self, rank: int, size: int, address: tuple[str, int], start_s: float, cuda: bool) -> None:
        """Joins the process group at `address` within `start_s` seconds, and runs `worker_loop` until the shutdown."""

        def work() -> None:
            self._following = True
            try:
                _speak_towards(address)
                store = TCPStore(*address, size, is_master=False, timeout=timedelta(seconds=start_s))
                worker_loop(Ranks.rendezvous(rank, size, store, cuda=cuda, device=self._device))
            except BaseException:
                if dist.is_initialized():
                    dist.destroy_process_group()  # makes collectives of the other ranks fail at once
                raise
            finally:
                self._following = False

        await in_thread(work)

    async def close(self) -> None:
        """Exits the process if rank 0 is gone without a shutdown: a pending collective cannot be cancelled."""
        if self._following:
            os._exit(1)


class LaunchedRanks:
    """The trainer ranks of this run, seen from rank 0.

    Args:
        ranks: rank and size of this process.
        following: tasks of the launched ranks; empty if this process launched none.
        restarts: `scale.restarts`, for `RankDied`.
    """

    def __init__(self, ranks: Ranks, following: Sequence[asyncio.Task[Any]], restarts: int = 0) -> None:
        self.ranks, self._following, self._restarts = ranks, following, restarts

    async def train(self, training: Coroutine[Any, Any, None]) -> None:
        """Awaits the training, then shuts down the other ranks.

        Raises:
            RankDied: a rank died before the end of the training.
            Exception: the exception that the training raised.
        """
        if not self._following:
            await training
            return await self._shut_down()
        task = asyncio.create_task(training)
        try:
            await asyncio.wait([task, *self._following], return_when=asyncio.FIRST_COMPLETED)
            if not task.done() or isinstance(task.exception(), RankFailed):
                await self._fail(task)
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])
        await self._shut_down()
        await asyncio.wait(self._following, timeout=TOLD_S)

    async def _shut_down(self) -> None:
        """Ends the process group. The training is complete: a rank that is dead or does not answer is not needed."""
        with suppress(RankUnreachable, TimeoutError):
            await asyncio.wait_for(in_thread(self.ranks.shutdown), TOLD_S)

    async def _fail(self, task: asyncio.Task[None]) -> NoReturn:
        """Raises the cause after a rank ended or a collective failed."""
        if (death := await self._death()) is not None:
            raise RankDied(f"ended before the training did: {death}", restarts=self._restarts) from death
        # No death is reported. A failure of all ranks is raised here; a failure of one rank is raised by its task.
        await asyncio.wait([task], timeout=TOLD_S)
        if task.done() and not isinstance(error := task.exception(), RankFailed | None):
            raise error
        failures = [each.exception() for each in [*self._following, task] if each.done()]
        for failure in filter(None, failures):
            if not isinstance(failure, RankUnreachable):
                raise failure
        raise RankDied(
            f"does not answer, no death is reported: {next(filter(None, failures), 'it has left the training')}",
            restarts=self._restarts,
        )

    async def _death(self) -> WorkerDied | None:
        """The death of a launched rank, or None. Launchers report it later than a failed collective: wait `TOLD_S`."""
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
async def trainer_ranks(scale: ScaleSettings, base: Path, joined: Ranks, *, cuda: bool) -> AsyncIterator[LaunchedRanks]:
    """The trainer ranks: started by torchrun, launched for `scale.trainer_ranks`, or this process alone.

    Args:
        base: folder of the recipe.
        joined: rank and size of this process under torchrun.
        cuda: whether the model trains on GPUs.

    Raises:
        RecipeError: torchrun has started ranks and the recipe asks for more, or a rank has no resources.
        AgentRLError: the cluster has not enough resources.
        RankDied: a rank died before all had joined the process group.
        RankFailed: the ranks did not meet within `scale.start_s`.
    """
    if joined.size > 1 and scale.trainer_ranks > 1:
        raise RecipeError(
            "torchrun has started the ranks already",
            place="scale.trainer_ranks",
            remedy="start without torchrun, or set scale.trainer_ranks=1",
        )
    check_launcher(scale, base)
    gpus = float(cuda) if scale.rank_gpus is None else scale.rank_gpus
    if scale.use == "ray" and not gpus and not scale.rank_cpus:
        raise RecipeError(
            "a rank takes neither CPUs nor GPUs", place="scale.rank_cpus", remedy="leave it out, or set scale.rank_gpus"
        )
    if scale.trainer_ranks == 1 and not (scale.use == "ray" and gpus and joined.size == 1):
        yield LaunchedRanks(joined, [])
        return
    request = ResourceRequest(
        "scale.trainer_ranks", scale.trainer_ranks, cpus=scale.rank_cpus, gpus=gpus, spread=False, beside_driver=True
    )
    environment = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME")}
    launcher = await open_launcher(scale, base, request)
    handles: list[Handle] = []
    following: list[asyncio.Task[Any]] = []
    try:
        if scale.use == "ray":
            handles.append(await _reserve_gpus(launcher, gpus))
        yield await _launch_ranks(scale, launcher, handles, following, cuda)
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*(handle.close() for handle in handles), *following, return_exceptions=True)
        await _leave_group()
        await launcher.close()
        for name, value in environment.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


async def _reserve_gpus(launcher: Launcher, gpus: float) -> Handle:
    """Reserves the resources of rank 0, and restricts this process to the reserved GPUs."""
    seat = await launcher.spawn("rank 0", GpuReservation)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = await seat.call("gpus")
    return seat


async def _launch_ranks(
    scale: ScaleSettings, launcher: Launcher, handles: list[Handle], following: list[asyncio.Task[Any]], cuda: bool
) -> LaunchedRanks:
    """Spawns the other ranks, and waits until all ranks have joined the process group."""
    size, start_s, restarts = scale.trainer_ranks, scale.start_s, scale.restarts
    if size == 1:
        return LaunchedRanks(Ranks(), [])
    _speak_towards((launcher.host, 9))
    store = TCPStore(launcher.host, 0, size, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=start_s))

    async def start(rank: int) -> None:
        device = 0 if scale.use == "ray" else rank  # Ray shows each rank only its own GPUs
        handle = await spawn_within(start_s, launcher, f"trainer rank {rank}", RankWorker, device)
        handles.append(handle)
        call = handle.call("run", rank, size, (launcher.host, store.port), start_s, cuda)
        following.append(asyncio.create_task(call))

    # At the same time: each imports torch.
    for error in await asyncio.gather(*map(start, range(1, size)), return_exceptions=True):
        if isinstance(error, WorkerDied):
            raise RankDied(f"did not start: {error}", restarts=restarts) from error
        if error is not None:
            raise error
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
    """Destroys the process group if it is left after a failure. Otherwise it would abort the process at exit."""
    if dist.is_initialized():
        with suppress(TimeoutError):
            await asyncio.wait_for(in_thread(dist.destroy_process_group), TOLD_S)


def _speak_towards(address: tuple[str, int]) -> None:
    """Makes gloo use the interface that routes to `address`. Its default is that of the host name, often loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # the interface has no address
                found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if found[20:24] == own:
                    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
