"""Control requests to the servers of a vLLM engine: weight updates, adapters, sleep and wake."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.engines.http import HttpClient, Refused
from agentrl.engines.replicas import Replica, Replicas
from agentrl.engines.vllm.adapters import Shelf
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.engines.vllm.transfer import Transfer, transfer_of
from agentrl.types.engine import Adapter, NoAdapters
from agentrl.types.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

CLEAR = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"
CLEAR_SEEN = "/reset_encoder_cache"
"""Drops cached image features, after `CLEAR`, which makes the requests in flight recompute them."""

UNTRAINED = "default"
"""Version name of a server before its first weight update."""

_NOTHING = type(None)


class _WeightInfo(msgspec.Struct):
    weight_version: str


class _Cleared(msgspec.Struct):
    success: bool


class ServerControl:
    """Sends control requests to all servers concurrently.

    A server that fails one is drained: it gets no sampling requests until an update succeeds.

    Args:
        replicas: the servers, shared with the engine.
        base: folder of the recipe.
    """

    def __init__(self, replicas: Replicas, client: HttpClient, settings: VLLMSettings, base: Path) -> None:
        self._replicas, self._client, self._settings, self._base = replicas, client, settings, base
        self._shelf = Shelf(Path(settings.weights_dir) if settings.weights_dir else None)
        self._transfer: Transfer | None = None
        self._asleep: list[Replica] = []

    async def close(self) -> None:
        """Closes the weight transfer and removes the adapters' folders."""
        self._shelf.close()
        if self._transfer is not None:
            await self._transfer.close()
            self._transfer = None

    async def sleep(self) -> None:
        """Puts the servers to sleep, which frees the memory of their GPUs.

        Raises:
            EngineError: a server does not go to sleep.
        """
        awake = [replica for replica in self._replicas.all if replica not in self._asleep]
        self._asleep += await self._each(awake, "/sleep?level=1&mode=keep", None)
        for replica in awake:
            if replica not in self._asleep:
                raise EngineError(
                    f"the server does not free the GPU's memory: {replica.unavailable_reason}",
                    place=replica.url,
                    remedy="start it with --enable-sleep-mode, as agentrl serve does with engine.colocate=sleep",
                )

    async def wake(self) -> None:
        """Wakes the sleeping servers. They need new weights before they sample."""
        asleep, self._asleep = self._asleep, []
        await self._each(asleep, "/wake_up", None)

    async def send_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Updates the weights of all servers concurrently, including servers that failed before.

        The steps are: pause, start, send, finish, clear caches, resume.

        Raises:
            EngineError: the update failed on every server.
        """
        if self._transfer is None:
            self._transfer = transfer_of(self._settings, self._base)
        await self._transfer.prepare(weights)
        paused = await self._each(self._replicas.all, "/pause?mode=keep&clear_cache=true", None)
        started = await self._each(paused, "/start_weight_update", None)
        sent = await self._transfer.send(started, self._each)
        done = await self._each(sent, "/finish_weight_update", {"weight_version": str(version)})
        # vLLM versions clear different caches at a pause. This clears all of the old weights. Pending requests are
        # recomputed, so each log-probability is computed under one version, history included.
        cleared = await self._each(done, CLEAR, None, kind=_Cleared)
        # The processed images (`/reset_mm_cache`) do not depend on weights, and requests in flight refer to them.
        unseen = await self._each(cleared, CLEAR_SEEN, None)
        resumed = await self._each(unseen, "/resume", None)
        for replica in resumed:
            replica.unavailable_reason = ""
            replica.record_success()
        # A server that failed in between has mixed weights: it stays paused, and its requests continue elsewhere.
        await self._each([replica for replica in started if replica not in resumed], "/abort_requests", {})
        await self._each([replica for replica in paused if replica not in started], "/resume", None)
        if not resumed:
            reasons = "; ".join(f"{replica.url}: {replica.unavailable_reason}" for replica in self._replicas.all)
            raise EngineError(
                f"no server took the weights of version {version}: {reasons}",
                remedy="start servers with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config, as agentrl serve does",
            )

    async def send_adapter(self, adapter: Adapter, version: int, *, first: bool) -> str:
        """Loads an adapter on all servers. Returns its name.

        Each version has its own name: servers keep prefix caches by adapter name, so versions never share a cache.

        Args:
            first: the servers have no adapter of this engine yet.

        Raises:
            NoAdapters: a server rejects the first adapter.
            EngineError: no server loaded the adapter.
        """
        if first and await self._trained_before():
            await self.send_weights(await adapter.base(), version)
        name = await self._shelf.put(adapter, version)
        took = await self.load_adapter(self._replicas.all, name)
        lacking = [replica for replica in self._replicas.all if replica not in took]
        if first and lacking:
            why = f"{lacking[0].url}: {lacking[0].unavailable_reason}"
            for replica in lacking:
                replica.unavailable_reason = ""
            await self.unload_adapter(name)
            raise NoAdapters(why)
        if not took:
            raise EngineError(
                f"no server took the adapter of version {version}: {lacking[0].unavailable_reason}",
                place=lacking[0].url,
                remedy="see the server's log, restart the server, and run the same command again",
            )
        return name

    async def load_adapter(self, replicas: Sequence[Replica], name: str) -> list[Replica]:
        """Loads an adapter. Returns the servers that have it now.

        Not with `load_inplace`: a server would read the folder at every step.
        """
        body = {"lora_name": name, "lora_path": str(self._shelf.folder(name))}
        took = await self._each(replicas, "/v1/load_lora_adapter", body, done_before="already been loaded")
        for replica in took:
            replica.unavailable_reason = ""
            replica.record_success()
        return took

    async def unload_adapter(self, name: str) -> None:
        """Unloads an adapter from the servers and removes its folder."""
        await self._each(self._replicas.all, "/v1/unload_lora_adapter", {"lora_name": name}, needed=False)
        self._shelf.drop(name)

    async def _trained_before(self) -> bool:
        """Returns True if a server has weights of an earlier training.

        Servers that do not report a version are trusted; the trainer's canary compares log-probabilities.
        """

        async def one(replica: Replica) -> bool:
            try:
                info = await self._client.get(f"{replica.url}/weight_info", _WeightInfo)
            except (EngineError, Refused):
                return False
            return info.weight_version != UNTRAINED

        return any(await asyncio.gather(*map(one, self._replicas.all)))

    async def _each(
        self,
        replicas: Sequence[Replica],
        path: str,
        body: Any,
        *,
        needed: bool = True,
        done_before: str | None = None,
        kind: type[_Cleared] | type[None] = _NOTHING,
    ) -> list[Replica]:
        """Posts to servers concurrently. Returns the servers that succeeded; if `needed`, the others are drained.

        Args:
            done_before: text of an error that counts as success: the call had no effect left to make.
            kind: type of the reply, for endpoints that report failures in the body of a successful reply.
        """

        async def one(replica: Replica) -> bool:
            try:
                reply = await self._client.post(replica.url + path, body, kind)
                if reply is not None and not reply.success:
                    raise EngineError("the server reports a failure")
            except (EngineError, Refused) as error:
                if done_before is not None and done_before in error.message:
                    return True
                if needed:
                    replica.unavailable_reason = f"{path}: {error.message}"
                return False
            return True

        agreed = await asyncio.gather(*map(one, replicas))
        return [replica for replica, yes in zip(replicas, agreed, strict=True) if yes]
