"""vLLM servers on a Ray cluster: an actor with GPUs for each server, and replacements for servers that die.

The engine uses them like the servers that it starts itself (`engines/vllm/launch.py`): it waits for them, reads their
URLs and closes them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from agentrl.config.recipe import Recipe
from agentrl.distributed.handle import Handle, Launcher, ResourceRequest, spawn_within
from agentrl.distributed.launchers import open_launcher
from agentrl.engines.http import back_off
from agentrl.engines.vllm.launch import Servers, Serving, start_servers
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.types.errors import RecipeError

_log = logging.getLogger(__name__)


class VLLMServer:
    """A vLLM server on the machine of this actor.

    Args:
        model: folder of the model, which must exist on this machine.

    Raises:
        RecipeError: the folder is not on this machine.
        EngineError: vLLM is not installed for the interpreter.
    """

    def __init__(self, settings: VLLMSettings, model: str, serving: Serving) -> None:
        import ray

        self._host: str = ray.util.get_node_ip_address()
        if not Path(model).is_dir():
            raise RecipeError(
                f"the model's folder {model} is not on {self._host}",
                place="model.path",
                remedy="copy it there under the same path, or share it (NFS, an image that contains it)",
            )
        alone = settings.model_copy(update={"replicas": 1})
        self._servers: Servers = start_servers(alone, Path(model), serving, host=self._host)

    async def ready(self) -> str:
        """Waits until the server answers, at most `START_S` seconds. Returns its URL.

        Raises:
            EngineError: the server exited or did not answer in time; with the end of its log.
        """
        await self._servers.ready()
        return self._servers.urls[0]

    async def watch(self) -> str:
        """Waits until the server exits by itself. Returns its exit status and the path of its log, for messages."""
        (server,) = self._servers.servers
        status = await asyncio.to_thread(server.process.wait)
        return f"the server ended with status {status}, its log is {server.log} on {self._host}"

    async def close(self) -> None:
        """Stops the server."""
        await self._servers.close()


class LaunchedServers:
    """The vLLM servers of one engine, launched on the cluster.

    Args:
        model: folder of the model; the path must exist on every machine.
        serving: see `start_servers`.

    Attributes:
        urls: URLs of the servers that run now.
    """

    def __init__(self, recipe: Recipe, settings: VLLMSettings, model: Path, serving: Serving) -> None:
        self.urls: Sequence[str] = ()
        self._settings, self._scale, self._base = settings, recipe.scale, recipe.base
        self._server = (settings, str(model), serving)
        self._launcher: Launcher | None = None
        self._handles: list[Handle] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._started, self._restarts = 0, 0

    async def ready(self) -> None:
        """Launches the servers, and waits until all answer.

        Raises:
            AgentRLError: the cluster has not enough resources.
            EngineError: a server did not start.
            RecipeError: the model is not on a server's machine, or weight transfer cannot reach it.
        """
        if self._launcher is not None:
            return
        replicas, scale = self._settings.replicas, self._scale
        gpus = scale.server_gpus
        request = ResourceRequest(
            "engine.replicas", replicas, cpus=scale.server_cpus, spread=False, gpus_if_any=gpus is None,
            gpus=self._settings.tensor_parallel if gpus is None else gpus,
        )  # fmt: skip
        launcher = self._launcher = await open_launcher(self._scale, self._base, request)
        try:
            begun = await asyncio.gather(*(self._begin(launcher) for _ in range(replicas)))
        except BaseException:
            await self.close()
            raise
        self._keeping = [asyncio.create_task(self._keep(launcher, *each)) for each in begun]

    async def close(self) -> None:
        """Stops all servers."""
        for keeping in self._keeping:
            keeping.cancel()
        await asyncio.gather(*self._keeping, *(handle.close() for handle in self._handles), return_exceptions=True)
        self._keeping.clear()
        self._handles.clear()
        if self._launcher is not None:
            launcher, self._launcher = self._launcher, None
            await launcher.close()

    async def _begin(self, launcher: Launcher) -> tuple[Handle, str]:
        """Starts a server. Returns its handle and URL."""
        name = f"server {self._started}"
        self._started += 1
        handle = await spawn_within(self._scale.start_s, launcher, name, VLLMServer, *self._server)
        self._handles.append(handle)
        try:
            url: str = await handle.call("ready")
            self._check_way(launcher.host, url)
        except BaseException:
            await self._end(handle)
            raise
        self.urls = (*self.urls, url)
        _log.info("%s listens at %s", name, url)
        return handle, url

    async def _end(self, handle: Handle) -> None:
        await handle.close()
        if handle in self._handles:
            self._handles.remove(handle)

    async def _keep(self, launcher: Launcher, handle: Handle, url: str) -> None:
        """Watches a server and replaces it when it dies, while `scale.restarts` last."""
        running: tuple[Handle, str] | None = (handle, url)
        while running is not None:
            handle, url = running
            try:
                why = str(await handle.call("watch"))
            except Exception as error:  # its process or machine died
                why = str(error)
            finally:
                self.urls = tuple(each for each in self.urls if each != url)
                await self._end(handle)
            _log.warning("%s", why)
            running = await self._another(launcher)

    async def _another(self, launcher: Launcher) -> tuple[Handle, str] | None:
        """Starts a replacement for a dead server. None when no restart is left."""
        while self._restarts < self._scale.restarts:
            self._restarts += 1
            # Ray notices a dead node after some seconds, and schedules actors on it until then.
            await back_off(self._restarts, most_s=10.0)
            try:
                return await self._begin(launcher)
            except Exception as error:  # a background task: nobody awaits the error
                _log.warning("the replacement server did not start: %s", error)
        _log.warning("the server is not replaced: scale.restarts is %d", self._scale.restarts)
        return None

    def _check_way(self, host: str, url: str) -> None:
        """Checks that weights transferred through a file are in a folder that the server's machine can read."""
        elsewhere = urlsplit(url).hostname != host
        if elsewhere and self._settings.transfer.use == "file" and not self._settings.weights_dir:
            raise RecipeError(
                f"the server at {url} cannot read weights that this machine writes to its own memory (/dev/shm)",
                place="engine.weights_dir",
                remedy="set it to a folder that all machines share, or set engine.transfer: nccl",
            )
