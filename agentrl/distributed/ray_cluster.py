"""The Ray launcher: each object is an actor in a bundle of a placement group, one group per kind of object.

Ray places the objects and carries calls. Tokens travel by HTTP, weights by the engine's weight transfer. When a node
dies, its actors die, and Ray moves their bundles to other nodes: the next `spawn` runs there. An actor whose process is
frozen Ray would keep for ever: it is pinged, and killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agentrl.config.scale import ScaleSettings
from agentrl.distributed.handle import CLOSE_S, ActorHost, ResourceRequest, WorkerDied, unwrap
from agentrl.distributed.pulse import silence
from agentrl.types.errors import AgentRLError, needs

OBJECT_STORE_BYTES = 256 << 20
"""Size of the object store of a cluster started on this machine. Only finished episodes pass through it."""

TELL_S, OWN_S = 5.0, 15.0
"""Seconds of waiting for resources until a warning, and, on a cluster started for this run, until the error."""

_log = logging.getLogger(__name__)

CALLS_AT_ONCE = 100_000
"""Concurrent calls of an actor. Ray's default is 1000, and a worker may have more episodes in flight."""


class RayLauncher:
    """Spawns objects as actors of a Ray cluster, each in a bundle of one placement group."""

    host: str

    def __init__(self, scale: ScaleSettings, request: ResourceRequest) -> None:
        self._scale, self._request = scale, request
        self._group: Any = None
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for bundle in range(request.count):
            self._free.put_nowait(bundle)

    async def open(self) -> None:
        """Connects to the cluster (`scale.address`, $RAY_ADDRESS, or one that it starts here) and reserves resources.

        Raises:
            MissingExtra: Ray is not installed.
            AgentRLError: there is no such cluster, or it has not enough resources.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with needs("ray"):
            import ray
        _connection.open(self._scale)
        if self._request.gpus_if_any and not ray.cluster_resources().get("GPU"):
            self._request = replace(self._request, gpus=0)
        try:
            self._group = await _reserved(self._scale, self._request)
            self.host = ray.util.get_node_ip_address()
        except BaseException:
            _connection.close()
            raise

    async def spawn(self, name: str, cls: type, *args: Any) -> RayHandle:
        """Makes the object in an actor, in a free bundle of the placement group."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as Within

        bundle = await self._free.get()  # the bundle of a dead actor is freed when its handle closes
        seated = self._request.beside_driver and bundle == 0
        options = {
            "num_cpus": 0 if seated else self._request.cpus,
            "num_gpus": self._request.gpus,
            "max_restarts": 0,
            "max_concurrency": CALLS_AT_ONCE,
            "scheduling_strategy": Within(self._group, placement_group_bundle_index=bundle),
        }
        actor = _actor_class().options(**options).remote()
        handle = RayHandle(name, actor, lambda: self._free.put_nowait(bundle))
        try:
            await handle.request("make", cls, args)
            handle.watch()
        except BaseException:
            handle.release()
            raise
        return handle

    async def close(self) -> None:
        """Removes the placement group."""
        import ray

        ray.util.remove_placement_group(self._group)
        _connection.close()


class _Connection:
    """This process's connection to Ray, shared by its launchers. The last one closes it, if a launcher opened it."""

    def __init__(self) -> None:
        self._launchers, self.ours = 0, False

    def open(self, settings: ScaleSettings) -> None:
        import ray

        if not ray.is_initialized():
            _join(settings)
            self.ours = True
        self._launchers += 1

    def close(self) -> None:
        import ray

        self._launchers -= 1
        if self.ours and not self._launchers:
            ray.shutdown()
            self.ours = False


_connection = _Connection()


def _join(settings: ScaleSettings) -> None:
    import ray

    address = settings.address or os.environ.get("RAY_ADDRESS")
    started: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        # "local" starts a new cluster, even if another one runs on this machine.
        how = {"address": address} if address else {"address": "local", **started}
        ray.init(**how, log_to_driver=True, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise AgentRLError(
            f"no Ray cluster at {address or 'this machine'}: {error}",
            place="scale.address",
            remedy="ray start --head on one machine, ray start --address=HEAD:6379 on the others",
        ) from None


async def _reserved(settings: ScaleSettings, request: ResourceRequest) -> Any:
    """A placement group with the requested resources."""
    import ray

    gpus = {"GPU": request.gpus} if request.gpus else {}
    cpus = {"CPU": request.cpus} if request.cpus or not gpus else {}
    bundles = [{**cpus, **gpus}] * request.count
    if request.beside_driver:
        bundles[0] = {**gpus, f"node:{ray.util.get_node_ip_address()}": 0.001}
    group = ray.util.placement_group(bundles, strategy="SPREAD" if request.spread else "PACK")
    # A cluster started for this run is used by this run alone: waiting longer would not free resources.
    patience = min(OWN_S, settings.start_s) if _connection.ours else settings.start_s
    ready = asyncio.ensure_future(group.ready())
    try:
        done, _ = await asyncio.wait([ready], timeout=min(TELL_S, patience))
        if not done:
            _log.warning("%s: %s; waiting for resources, at most %g s", request.key, _asked(request), patience)
            done, _ = await asyncio.wait([ready], timeout=patience - min(TELL_S, patience))
        if not done:
            raise AgentRLError(
                f"not enough resources on the cluster: {_asked(request)}",
                place=request.key,
                remedy="request less, add nodes, or wait until other jobs free resources (ray status)",
            )
    except BaseException:
        ready.cancel()
        ray.util.remove_placement_group(group)
        raise
    return group


def _asked(request: ResourceRequest) -> str:
    """The requested and the available resources, for messages."""
    import ray

    there, free = ray.cluster_resources(), ray.available_resources()
    kinds = [("CPUs", request.cpus, "CPU"), ("GPUs", request.gpus, "GPU")]
    asked = " and ".join(f"{number:g} {kind}" for kind, number, _ in kinds if number)
    has = ", ".join(f"{free.get(k, 0):g} of {there.get(k, 0):g} {kind}" for kind, n, k in kinds if n)
    driver = ", the first of them on this machine" if request.beside_driver else ""
    return f"{request.count} with {asked} each are requested{driver}; free: {has}"


class RayHandle:
    """Handle of an object in a Ray actor.

    Args:
        freed: called when the actor is gone.
    """

    def __init__(self, name: str, actor: Any, freed: Callable[[], None]) -> None:
        self.name, self._actor, self._freed = name, actor, freed
        self._frozen = ""  # why its process counts as frozen
        self._watching: asyncio.Task[None] | None = None

    async def call(self, method: str, *args: Any) -> Any:
        """Calls the method in the object's actor."""
        return await self.request("call", method, args)

    async def request(self, what: str, *args: Any) -> Any:
        """Calls the method `what` of the object's `ActorHost`."""
        from ray import exceptions

        # Pickled here, not by Ray: arrays from Ray are read-only, and Ray wraps exceptions in its own.
        try:
            if self._frozen:
                raise WorkerDied(self._frozen, place=self.name)
            reply = await getattr(self._actor, what).remote(pickle.dumps(args))
        except exceptions.RayTaskError:  # a bug in `_Actor`
            raise
        except exceptions.RayError as error:  # its process or node died, or ran out of memory
            why = self._frozen or (str(error).splitlines() or [type(error).__name__])[0]
            raise WorkerDied(why, place=self.name) from None
        return unwrap(pickle.loads(reply))

    async def close(self) -> None:
        """Closes the object and kills its actor."""
        try:
            with suppress(Exception):  # it may be gone, or hang
                async with asyncio.timeout(CLOSE_S):
                    await self.request("close")
        finally:
            self.release()

    def watch(self) -> None:
        """Kills the actor from now on if it falls silent: its pending calls fail."""
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        from ray.exceptions import RayError

        with suppress(RayError):  # it is gone, and its calls say so
            self._frozen = f"its process {await silence(self._ping)}"
            self._kill()

    async def _ping(self) -> None:
        await self._actor.ping.remote()

    def release(self) -> None:
        """Kills the actor, even if it has not started."""
        if self._watching is not None:
            self._watching.cancel()
        self._kill()
        freed, self._freed = self._freed, lambda: None
        freed()

    def _kill(self) -> None:
        import ray

        with suppress(Exception):
            ray.kill(self._actor)


class GpuReservation:
    """Placeholder actor that reserves GPUs for trainer rank 0, which runs in the driver.

    It stands in this module because its process then imports no torch.
    """

    async def gpus(self) -> str:
        """The reserved GPUs, in the format of `CUDA_VISIBLE_DEVICES`."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")

    async def close(self) -> None:
        """Nothing to close."""


PULSE = "pulse"


class _Actor:
    """An `ActorHost` with pickled arguments and replies."""

    def __init__(self) -> None:
        self._host = ActorHost()

    async def make(self, args: bytes) -> bytes:
        """`ActorHost.make`."""
        return pickle.dumps(await self._host.make(*pickle.loads(args)))

    async def call(self, args: bytes) -> bytes:
        """`ActorHost.call`."""
        return pickle.dumps(await self._host.call(*pickle.loads(args)))

    async def close(self, args: bytes) -> bytes:
        """`ActorHost.close`."""
        return pickle.dumps(await self._host.close())

    async def ping(self) -> None:
        """Answers, in a thread of its own, however busy the others are."""


def _actor_class() -> Any:
    import ray

    class Actor(_Actor):
        ping = ray.method(concurrency_group=PULSE)(_Actor.ping)

    return ray.remote(concurrency_groups={PULSE: 1})(Actor)
