"""Connection to a container engine: the `docker` package, in a few threads, with a timeout on every call."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from agentrl.sandbox.docker.create_limiter import EngineAway, EngineChoked
from agentrl.types.errors import needs
from agentrl.types.sandbox import CapabilityMissing, SandboxUnavailable

T = TypeVar("T")

CALL_S = 60.0
DEFAULT_HOST = "unix:///var/run/docker.sock"
_INSTALL = "install and start one: apt-get install -y docker.io && (systemctl start docker || dockerd &)  (as root)"


class ContainerEngine:
    """A container engine on this machine.

    Args:
        host: address; default: `DOCKER_HOST`, else the usual socket.
        threads: maximum of calls in flight.
    """

    def __init__(self, host: str | None = None, threads: int = 8) -> None:
        with needs("docker"):
            import docker.errors
            import requests
        self._docker, self._requests = docker, requests
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="agentrl-docker")
        self._own = threading.local()
        self._version = "auto"

    def open(self) -> dict[str, Any]:
        """Returns the engine's self-description (`docker info`).

        Raises:
            SandboxUnavailable: no engine runs, or we may not talk to it.
            CapabilityMissing: it is on another machine.
        """
        scheme, _, path = self.host.partition("://")
        if scheme != "unix":
            raise CapabilityMissing(
                f"the engine at {self.host} is on another machine, where sandboxes could not reach us",
                place="DOCKER_HOST",
                remedy="use a unix:// address",
            )
        if not os.path.exists(path):
            raise SandboxUnavailable(f"there is no container engine at {self.host}", remedy=_INSTALL)
        if not os.access(path, os.R_OK | os.W_OK):
            group = Path(path).group() if _has_group(path) else "docker"
            raise SandboxUnavailable(
                f"no permission to use the container engine at {self.host}",
                remedy=f"sudo usermod -aG {group} $USER, then log in again",
            )
        info: dict[str, Any] = self.ask(lambda api: api.info(), 20)
        self._version = self._client(20).api_version
        return info

    def ask(self, call: Callable[[Any], T], timeout_s: float = CALL_S) -> T:
        """Makes a call (it gets a `docker.APIClient`) and waits for it.

        Raises:
            EngineAway: no engine listens at the address.
            EngineChoked: no answer in time, or a 5xx.
            docker.errors.APIError: the engine refused (4xx).
        """
        client = None
        try:
            client = self._client(timeout_s)
            return call(client)
        except self._requests.exceptions.Timeout:
            raise EngineChoked(f"the container engine did not answer within {timeout_s:g} s") from None
        except self._docker.errors.APIError as error:
            if error.is_server_error() and not _is_refusal(error):
                raise EngineChoked(f"the container engine failed: {error.explanation}") from None
            raise
        except (self._requests.exceptions.ConnectionError, self._docker.errors.DockerException) as error:
            if "refused" in str(error) or "No such file" in str(error):
                raise EngineAway(f"no container engine answers at {self.host}", remedy=_INSTALL) from None
            raise EngineChoked(f"the container engine broke off: {error}") from None
        finally:
            if client is not None:  # it would hold a connection for each URL, i.e. for each container
                client.close()

    async def call(self, call: Callable[[Any], T], timeout_s: float = CALL_S) -> T:
        """Makes a call in a thread, see `ask`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.ask, call, timeout_s)

    def is_absent(self, error: BaseException) -> bool:
        """Returns True if the engine reports that an object does not exist."""
        return isinstance(error, self._docker.errors.NotFound)

    def refused(self, error: BaseException) -> str:
        """Returns the engine's message when it refused a call; empty for other errors."""
        return str(error.explanation) if isinstance(error, self._docker.errors.APIError) else ""

    def _client(self, timeout_s: float) -> Any:
        """Returns the calling thread's client: the package does not promise to be thread-safe."""
        client = getattr(self._own, "client", None)
        if client is None:
            client = self._own.client = self._docker.APIClient(self.host, version=self._version, timeout=timeout_s)
        client.timeout = timeout_s
        return client


def _is_refusal(error: Any) -> bool:
    """Returns True for a 500 that is a refusal: engines answer it also to requests that cannot be fulfilled."""
    return any(sign in str(error.explanation) for sign in ("OCI runtime", "is in progress", "conflict"))


def _has_group(path: str) -> bool:
    try:
        Path(path).group()
    except (KeyError, OSError):
        return False
    return True
