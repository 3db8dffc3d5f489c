"""What `benchmarks.sandbox` compares: our backends, plain `docker exec`, and SWE-ReX. Each arm times itself."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from agentrl.sandbox.pool import Pool
from agentrl.sandbox.registry import open_backend
from agentrl.types.errors import MissingExtra, SandboxError
from agentrl.types.sandbox import Backend, Sandbox, SandboxSpec
from benchmarks.harness import ROOT, Missing
from benchmarks.peers.venv import python_of

BLOB = b"x" * (64 << 10)
"""Content of the file that goes in and comes back."""
TRUE = ["true"]
CELL = "x = 1"


class Arm(Protocol):
    """One way to have a sandbox."""

    name: str

    async def open(self) -> None:
        """Gets ready. Raises Missing."""

    async def sample(self, what: str) -> float | None:
        """Does it once; milliseconds, or None if this arm has no such thing. `create` replaces the sandbox in hand."""

    async def close(self) -> None:
        """Frees everything."""


async def clock(call: Awaitable[object]) -> float:
    """Milliseconds that a call took."""
    started = time.perf_counter()
    await call
    return (time.perf_counter() - started) * 1e3


class Ours:
    """One of our backends, fresh sandboxes or from a pool."""

    def __init__(
        self,
        backend: str,
        at_once: int,
        *,
        pooled: bool = False,
        spec: SandboxSpec | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.name = f"{backend} pooled" if pooled else backend
        self._which, self._settings, self._pooled, self._at_once = backend, settings, pooled, at_once
        self._spec = spec or SandboxSpec()
        self._sandbox: Sandbox | None = None

    async def open(self) -> None:
        self._behind: Backend = open_backend(self._which, self._settings)
        try:
            await asyncio.to_thread(self._behind.preflight, self._spec)
        except (SandboxError, MissingExtra) as error:
            await self._behind.close()
            raise Missing(str(error)) from None
        self._pool = Pool(self._behind, ahead=1) if self._pooled else None
        self._backend: Backend = self._pool or self._behind

    async def sample(self, what: str) -> float | None:
        if what == "create":
            return await self._create()
        if what == "sandboxes at once":
            lives = (self._life() for _ in range(self._at_once))
            return await clock(asyncio.gather(*lives)) if not self._pooled else None
        box = self._sandbox
        assert box is not None
        does: dict[str, Callable[[], Awaitable[object]]] = {
            "first exec": lambda: box.exec(TRUE),
            "exec": lambda: box.exec(TRUE),
            "shell": self._shell,
            "cell": self._cell,
            "file": self._file,
            "execs at once": lambda: asyncio.gather(*(box.exec(TRUE) for _ in range(self._at_once))),
            "two sleeps": lambda: asyncio.gather(*(box.exec(["sleep", "1"]) for _ in range(2))),
        }
        return await clock(does[what]())

    async def _create(self) -> float:
        if self._sandbox is not None:
            await self._sandbox.close()
        if self._pool is not None:
            self._pool.prefetch([self._spec])
            await self._pool.settled()
        started = time.perf_counter()
        self._sandbox = await self._backend.create(self._spec)
        return (time.perf_counter() - started) * 1e3

    async def _shell(self) -> None:
        assert self._sandbox is not None
        await (await self._sandbox.session()).run("true")

    async def _cell(self) -> None:
        assert self._sandbox is not None
        await (await self._sandbox.python()).run(CELL)

    async def _file(self) -> None:
        assert self._sandbox is not None
        await self._sandbox.write("/tmp/blob", BLOB)
        assert await self._sandbox.read("/tmp/blob") == BLOB

    async def _life(self) -> None:
        async with await self._backend.create(self._spec) as sandbox:
            assert (await sandbox.exec(TRUE)).ok

    async def close(self) -> None:
        await self._backend.close()


class DockerExec:
    """What most code does: a container that sleeps, and `docker exec` through the docker package for each command."""

    name = "docker exec"

    def __init__(self, host: str, image: str, at_once: int) -> None:
        self._host, self._image, self._at_once = host, image, at_once
        self._container: Any = None

    async def open(self) -> None:
        if importlib.util.find_spec("docker") is None:
            raise Missing("no client: pip install 'agentrl-framework[docker]'")
        import docker

        self._client = docker.DockerClient(base_url=self._host, timeout=120, max_pool_size=64)

    async def sample(self, what: str) -> float | None:
        does: dict[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: asyncio.to_thread(self._create),
            "first exec": self._exec,
            "exec": self._exec,
            "file": lambda: asyncio.to_thread(self._file),
            "execs at once": lambda: asyncio.gather(*(self._exec() for _ in range(self._at_once))),
            "two sleeps": lambda: asyncio.gather(*(self._exec("sleep", "1") for _ in range(2))),
        }
        if what == "create":
            await asyncio.to_thread(self._remove)
        return await clock(does[what]()) if what in does else None

    def _create(self) -> None:
        self._container = self._client.containers.run(
            self._image, ["sleep", "3600"], detach=True, network_mode="none", cap_drop=["ALL"], pids_limit=256,
            mem_limit="1g", security_opt=["no-new-privileges"], labels={"agentrl.benchmark": str(os.getpid())},
        )  # fmt: skip

    async def _exec(self, *argv: str) -> None:
        code, _ = await asyncio.to_thread(self._container.exec_run, list(argv or TRUE))
        assert code == 0

    def _file(self) -> None:
        import io
        import tarfile

        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo("blob")
            entry.size = len(BLOB)
            tar.addfile(entry, io.BytesIO(BLOB))
        self._container.put_archive("/tmp", packed.getvalue())
        chunks, _ = self._container.get_archive("/tmp/blob")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
            member = tar.extractfile("blob")
            assert member is not None
            assert member.read() == BLOB

    def _remove(self) -> None:
        if self._container is not None:
            self._container.remove(force=True, v=True)
            self._container = None

    async def close(self) -> None:
        await asyncio.to_thread(self._remove)
        self._client.close()


class SweRex:
    """SWE-ReX: its server as a process of this machine (no container, so no isolation), its own client over HTTP."""

    name = "swe-rex"

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._helper: asyncio.subprocess.Process | None = None

    async def open(self) -> None:
        python = await asyncio.to_thread(python_of, "swe-rex")
        script = str(ROOT / "benchmarks" / "peers" / "swerex_arm.py")
        self._helper = await asyncio.create_subprocess_exec(
            python, "-P", script, str(self._at_once),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    async def sample(self, what: str) -> float | None:
        assert self._helper is not None
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        self._helper.stdin.write(what.encode() + b"\n")
        async with asyncio.timeout(120):
            line = await self._helper.stdout.readline()
        if not line:
            raise RuntimeError(f"the helper ended at {what!r}")
        took: float | None = json.loads(line)
        return took

    async def close(self) -> None:
        if self._helper is not None and self._helper.stdin is not None:
            self._helper.stdin.close()  # it ends its server and itself
            try:
                async with asyncio.timeout(20):
                    await self._helper.wait()
            except TimeoutError:
                self._helper.kill()
