"""What the servers of a vLLM engine are told beside requests: new weights, adapters, to sleep and to wake."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentrl.config.engine import EngineSettings
from agentrl.engines.http import HttpClient, Refused
from agentrl.engines.replicas import Replica, Replicas
from agentrl.engines.vllm.adapters import Adapter, NoAdapters, Shelf
from agentrl.engines.vllm.transfer import Transfer, transfer_of
from agentrl.types.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

CLEAR = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"

UNTRAINED = "default"
"""What a server calls the version of its model's own weights."""

_NOTHING = type(None)


class _WeightInfo(msgspec.Struct):
    weight_version: str


class _Cleared(msgspec.Struct):
    success: bool


class ServerControl:
    """Reaches all servers at once. One that fails is drained: it gets no requests until it has agreed again.

    Args:
        replicas: the servers, whoever else uses them.
        base: folder of the recipe.
    """

    def __init__(self, replicas: Replicas, client: HttpClient, settings: EngineSettings, base: Path) -> None:
        self._replicas, self._client, self._settings, self._base = replicas, client, settings, base
        self._shelf = Shelf(Path(settings.weights_dir) if settings.weights_dir else None)
        self._transfer: Transfer | None = None
        self._asleep: list[Replica] = []

    async def close(self) -> None:
        """Removes what weights and adapters travelled in."""
        self._shelf.close()
        if self._transfer is not None:
            await self._transfer.close()
            self._transfer = None

    async def sleep(self) -> None:
        """Has the servers give their GPUs' memory back.

        Raises:
            EngineError: one does not.
        """
        awake = [replica for replica in self._replicas.all if replica not in self._asleep]
        self._asleep += await self._each(awake, "/sleep?level=1&mode=keep", None)
        for replica in awake:
            if replica not in self._asleep:
                raise EngineError(
                    f"the server keeps the GPU's memory: {replica.unavailable_reason}",
                    place=replica.url,
                    remedy="start it with --enable-sleep-mode, as agentrl serve does with engine.colocate=sleep",
                )

    async def wake(self) -> None:
        """Has those that sleep take their memory again; they need new weights then."""
        asleep, self._asleep = self._asleep, []
        await self._each(asleep, "/wake_up", None)

    async def send_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Pause, start, send, finish, resume, on all servers at once; also on those that failed before.

        Raises:
            EngineError: no server took them.
        """
        if self._transfer is None:
            self._transfer = transfer_of(self._settings, self._base)
        await self._transfer.prepare(weights)
        paused = await self._each(self._replicas.all, "/pause?mode=keep&clear_cache=true", None)
        started = await self._each(paused, "/start_weight_update", None)
        sent = await self._transfer.send(started, self._each)
        done = await self._each(sent, "/finish_weight_update", {"weight_version": str(version)})
        # Whatever a pause clears in this vLLM or that: nothing computed under the old weights stays. Requests under way
        # are recomputed, so that every log-probability is that of one version, history included.
        cleared = await self._each(done, CLEAR, None, kind=_Cleared)
        resumed = await self._each(cleared, "/resume", None)
        for replica in resumed:
            replica.unavailable_reason = ""
            replica.record_success()
        # One that failed in between holds half a model: it stays paused, and what it was doing goes on elsewhere.
        await self._each([replica for replica in started if replica not in resumed], "/abort_requests", {})
        await self._each([replica for replica in paused if replica not in started], "/resume", None)
        if not resumed:
            reasons = "; ".join(f"{replica.url}: {replica.unavailable_reason}" for replica in self._replicas.all)
            raise EngineError(
                f"no server took the weights of version {version}: {reasons}",
                remedy="agentrl serve starts servers that can: VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config",
            )

    async def send_adapter(self, adapter: Adapter, version: int, *, first: bool) -> str:
        """Has the servers load an adapter; its name there. A name of its own for each version: the servers keep caches
        by name, so that none is used under another.

        Args:
            first: the servers hold no adapter of this engine yet.

        Raises:
            NoAdapters: it is the first, and a server does not take it.
            EngineError: no server took it.
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
                remedy="see the server's log; run the same command again when it serves again",
            )
        return name

    async def load_adapter(self, replicas: Sequence[Replica], name: str) -> list[Replica]:
        """Has servers load an adapter; those that have it now. Not in place: a server would read it at every step."""
        body = {"lora_name": name, "lora_path": str(self._shelf.folder(name))}
        took = await self._each(replicas, "/v1/load_lora_adapter", body, done_before="already been loaded")
        for replica in took:
            replica.unavailable_reason = ""
            replica.record_success()
        return took

    async def unload_adapter(self, name: str) -> None:
        """Has the servers forget an adapter, and removes its folder."""
        await self._each(self._replicas.all, "/v1/unload_lora_adapter", {"lora_name": name}, needed=False)
        self._shelf.drop(name)

    async def _trained_before(self) -> bool:
        """Whether a server holds weights that an earlier training pushed. Those that cannot tell are trusted; the
        trainer's canary compares log-probabilities."""

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
        """Posts to servers; those that agreed. The others are drained, if the call was `needed`.

        Args:
            done_before: a refusal that says this is none: nothing was left to do.
            kind: of the reply, where one that was accepted may still tell of a failure.
        """

        async def one(replica: Replica) -> bool:
            try:
                reply = await self._client.post(replica.url + path, body, kind)
                if reply is not None and not reply.success:
                    raise EngineError("the server could not do it")
            except (EngineError, Refused) as error:
                if done_before is not None and done_before in error.message:
                    return True
                if needed:
                    replica.unavailable_reason = f"{path}: {error.message}"
                return False
            return True

        agreed = await asyncio.gather(*map(one, replicas))
        return [replica for replica, yes in zip(replicas, agreed, strict=True) if yes]
