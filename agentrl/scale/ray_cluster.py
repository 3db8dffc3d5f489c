"""Objects on a Ray cluster: an actor each, in a placement group that is spread over the nodes.

Ray only places objects and carries calls; tokens travel by HTTP, and weights as the engine has it. A node that dies
takes its actors along, and Ray moves their part of the placement group to another node: the next `put` lands there.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentrl.errors import AgentRLError, needs
from agentrl.scale.handle import CLOSE_S, Host, WorkerDied, opened
from agentrl.scale.settings import ScaleSettings

OBJECT_STORE_BYTES = 256 << 20
"""Of a cluster that is started on this machine: only finished episodes pass through it."""

CALLS_AT_ONCE = 100_000
"""Ray's own limit for an actor is 1000: a worker may play more episodes at once."""


class RayPlace:
    """Room for the workers on a cluster.

    Args:
        group: a placement group with a bundle for each worker.
        ours: the cluster was started here, and ends with the place.
    """

    def __init__(self, settings: ScaleSettings, group: Any, *, ours: bool) -> None:
        import ray

        self.host: str = ray.util.get_node_ip_address()
        self._settings, self._group, self._ours = settings, group, ours
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for bundle in range(settings.rollout_workers):
            self._free.put_nowait(bundle)

    @classmethod
    async def open(cls, settings: ScaleSettings) -> RayPlace:
        """Joins a cluster (of `scale.address`, of $RAY_ADDRESS, or one that is started here), and reserves the room.

        Raises:
            MissingExtra: Ray is not installed.
            AgentRLError: there is no such cluster, or it is too small.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with needs("ray"):
            import ray
        ours = not ray.is_initialized()
        if ours:
            _join(settings)
        return cls(settings, await _reserved(settings), ours=ours)

    async def put(self, name: str, cls: type, *args: Any) -> RayHandle:
        """Makes the object in an actor, in a free part of the placement group."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Within

        bundle = await self._free.get()  # that of one who died is free a little later
        options = {
            "num_cpus": self._settings.worker_cpus,
            "max_restarts": 0,
            "max_concurrency": CALLS_AT_ONCE,
            "scheduling_strategy": Within(self._group, placement_group_bundle_index=bundle),
        }
        actor = ray.remote(_Actor).options(**options).remote()
        handle = RayHandle(name, actor, lambda: self._free.put_nowait(bundle))
        try:
            await handle.ask("make", cls, args)
        except BaseException:
            handle.release()
            raise
        return handle

    async def close(self) -> None:
        """Gives the room back; ends the cluster if it was started here."""
        import ray

        ray.util.remove_placement_group(self._group)
        if self._ours:
            ray.shutdown()


def _join(settings: ScaleSettings) -> None:
    import ray

    address = settings.address or os.environ.get("RAY_ADDRESS")
    started: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(address=address, log_to_driver=True, configure_logging=False, **({} if address else started))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise AgentRLError(
            f"no Ray cluster at {address or 'this machine'}: {error}",
            place="scale.address",
            remedy="ray start --head on one machine, ray start --address=HEAD:6379 on the others",
        ) from None


async def _reserved(settings: ScaleSettings) -> Any:
    """CPUs for all workers, on as many nodes as there are."""
    import ray

    cpus, count = settings.worker_cpus, settings.rollout_workers
    group = ray.util.placement_group([{"CPU": cpus}] * count, strategy="SPREAD")
    try:
        async with asyncio.timeout(settings.start_s):
            await group.ready()
    except TimeoutError:
        ray.util.remove_placement_group(group)
        there = ray.cluster_resources().get("CPU", 0)
        raise AgentRLError(
            f"{count} workers with {cpus:g} CPUs each do not fit: the cluster has {there:g} in all",
            place="scale.rollout_workers",
            remedy="fewer workers, a smaller scale.worker_cpus, or more nodes",
        ) from None
    return group


class RayHandle:
    """An object in an actor.

    Args:
        freed: is called when the actor is gone.
    """

    def __init__(self, name: str, actor: Any, freed: Callable[[], None]) -> None:
        self.name, self._actor, self._freed = name, actor, freed

    async def call(self, method: str, *args: Any) -> Any:
        """Calls it in its actor."""
        return await self.ask("call", method, args)

    async def ask(self, what: str, *args: Any) -> Any:
        """Has the host there do something."""
        from ray import exceptions

        # Pickled here: what comes out of Ray is read-only, and its own errors would wrap ours.
        try:
            reply = await getattr(self._actor, what).remote(pickle.dumps(args))
        except exceptions.RayTaskError:  # a bug of ours, in the actor
            raise
        except exceptions.RayError as error:  # its process, its node, its memory
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise WorkerDied(why, place=self.name) from None
        return opened(pickle.loads(reply))

    async def close(self) -> None:
        """Closes the object and kills its actor."""
        with suppress(Exception):  # It may be gone, or hang.
            async with asyncio.timeout(CLOSE_S):
                await self.ask("close")
        self.release()

    def release(self) -> None:
        """Kills the actor, also one that has not started."""
        import ray

        with suppress(Exception):
            ray.kill(self._actor)
        freed, self._freed = self._freed, lambda: None
        freed()


class _Actor:
    """A host whose messages are pickles."""

    def __init__(self) -> None:
        self._host = Host()

    async def make(self, args: bytes) -> bytes:
        """As `Host.make`."""
        return pickle.dumps(await self._host.make(*pickle.loads(args)))

    async def call(self, args: bytes) -> bytes:
        """As `Host.call`."""
        return pickle.dumps(await self._host.call(*pickle.loads(args)))

    async def close(self, args: bytes) -> bytes:
        """As `Host.close`."""
        return pickle.dumps(await self._host.close())
