"""Egress of a sandbox whose network is a list of hosts: a proxy on the host (`/tools/egress`).

The sandbox has only its own loopback. The proxy listens on a unix socket in a folder that only this sandbox sees; a
relay inside forwards connections to it from a loopback port, the proxy address of programs. No route needs to be
closed and no address can be guessed: the proxy is the only way out.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

from agentrl.sandbox.toolbox.client import TOOLS, WIRE, ToolboxSandbox
from agentrl.types.clocks.deadline import Deadline
from agentrl.types.paths import data_path
from agentrl.types.sandbox import SandboxStartFailed
from agentrl.types.stdlib import piped

RELAY_PORT = 3128
SOCKET = "egress"
"""Name of the proxy's socket in the folder mounted at `WIRE`."""

READY = b"ready\n"
START_S = 30.0
_log = logging.getLogger(__name__)


def proxy_environment() -> dict[str, str]:
    """Returns the variables that point programs to the relay."""
    address = f"http://127.0.0.1:{RELAY_PORT}"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    return dict.fromkeys(names, address) | dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1")


class Egress:
    """Process of the proxy. It is started on first use, and ends with us, even if we are killed.

    Refusals are logged, once for each sandbox and target.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._labels: dict[str, str] = {}
        self._opening: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    def open(self, path: str, allow: tuple[str, ...], label: str) -> None:
        """Listens for one sandbox on a unix socket. Blocks until it does.

        Args:
            path: of the socket.
            allow: see `NetworkAllow`.
            label: owner of the sandbox, for the log.

        Raises:
            SandboxStartFailed: the proxy cannot listen there.
        """
        with self._lock:
            self._labels[path] = label
            opened = self._opening[path] = Future()
            self._say({"open": path, "allow": allow})
        try:
            opened.result(START_S)
        except TimeoutError:
            raise SandboxStartFailed("the egress proxy does not answer") from None

    def close(self, path: str) -> None:
        """Stops listening there."""
        with self._lock:
            if self._labels.pop(path, None) is not None:
                self._say({"close": path})

    def stop(self) -> None:
        """Ends the proxy."""
        with self._lock:
            process, self._process = self._process, None
            self._labels.clear()
        if process is not None:
            process.kill()
            process.wait()

    def _say(self, command: dict[str, Any]) -> None:
        if self._process is None or self._process.poll() is not None:
            program = [sys.executable, "-I", "-S", str(data_path("tools", "egress", "proxy.py"))]
            self._process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
            threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        piped(self._process.stdin).write(json.dumps(command) + "\n")

    def _listen(self, process: subprocess.Popen[str]) -> None:
        output = piped(process.stdout)
        for line in output:
            said = json.loads(line)
            if "refused" in said:
                whose = self._labels.get(said["refused"], "a sandbox")
                _log.warning("egress of %s refused to %s: %s", whose or "a sandbox", said["target"], said["why"])
                continue
            opening = self._opening.pop(said.get("opened") or said["failed"])
            if "why" in said:
                opening.set_exception(SandboxStartFailed(f"the egress proxy cannot listen: {said['why']}"))
            else:
                opening.set_result(None)
        output.close()


async def open_egress(
    sandbox: ToolboxSandbox, egress: Egress, path: str, allow: tuple[str, ...], python: str = "python3"
) -> None:
    """Opens the proxy to a sandbox that has just started, and starts the relay inside.

    Args:
        path: of the proxy's socket, on the host; inside it is `WIRE`/`SOCKET`.
        allow: see `NetworkAllow`.
        python: the interpreter inside.

    Raises:
        SandboxStartFailed: the proxy or the relay cannot listen.
    """
    await asyncio.to_thread(egress.open, path, allow, sandbox.label)
    program = [python, "-I", "-S", "-B", f"{TOOLS}/relay.pyc", str(RELAY_PORT), f"{WIRE}/{SOCKET}"]
    relay = await sandbox.spawn(program, cwd="/")
    try:
        async with Deadline(START_S):
            said = await relay.read() or await relay.read("stderr")
    except TimeoutError:
        said = b"no word from the relay"
    if said != READY:
        raise SandboxStartFailed(f"the way to the egress proxy did not open: {said.decode('utf-8', 'replace').strip()}")
