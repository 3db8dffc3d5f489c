"""Environments implemented in Java (py4j): textworld-express and ScienceWorld."""

from __future__ import annotations

import io
import os
import shutil
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from agentrl.types.errors import RecipeError

GAMES = 16
"""Maximum games per Java process. If it dies, all of them fail; with many more, class loading gets slow."""
ANSWER_S = 120.0
"""Timeout of an answer from Java, seconds. Games that open at the same time wait for each other."""
OPTIONS = (
    # Java iterates sets in the order of identity hashes, which are random. A constant hash makes worlds repeat.
    *("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"),
    # Each game compiles its own copies of the classes for some hundred moves: compile fast, reserve memory.
    *("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=512m", "-XX:+UseSerialGC"),
)
"""Options of each Java process."""


def require_java() -> None:
    """Raises RecipeError if Java is not installed."""
    if shutil.which("java") is None:
        remedy = "apt-get install --no-install-recommends default-jre-headless"
        raise RecipeError("there is no program 'java'", remedy=remedy)


class JavaGames:
    """Pool of environments that share Java processes.

    These packages keep a game's world in static fields, so games with shared classes would interfere. Each environment
    therefore has its own class loader and thus its own copy of all classes and static fields. One process per
    environment would cost several times the time and memory.

    Args:
        start: makes an environment with its process in `_gateway.java_process`.
        module: name of the module with the `launch_gateway` that `start` calls.
    """

    def __init__(self, start: Callable[[], Any], module: str) -> None:
        self._start, self._module = start, module
        self._idle: list[Any] = []

    def take(self) -> Any:
        """Takes an unused environment, or starts one.

        Raises:
            RecipeError: Java is not installed.
        """
        with suppress(IndexError):
            while not _answers(env := self._idle.pop()):
                pass
            return env
        launcher_of(self._module)
        env = self._start()
        _limit_waits(env._gateway)
        return env

    def give(self, env: Any) -> None:
        """Returns an environment to the pool, unless it has stopped answering."""
        if not getattr(env._gateway._gateway_client, "lost", False):
            self._idle.append(env)

    @contextmanager
    def lent(self) -> Iterator[Any]:
        """Lends an environment for the duration of the context."""
        env = self.take()
        try:
            yield env
        finally:
            self.give(env)


def _limit_waits(gateway: Any) -> None:
    """Sets the answer timeout on existing and future connections."""
    client = gateway._gateway_client
    connect = client._create_connection

    def connected() -> Any:
        connection = connect()
        _limit_wait(connection, client)
        return connection

    client._create_connection = connected
    for connection in client.deque:
        _limit_wait(connection, client)


def _limit_wait(connection: Any, client: Any) -> None:
    # `settimeout` would add a system call to every read and write.
    seconds, part = divmod(ANSWER_S, 1)
    limit = struct.pack("ll", int(seconds), int(part * 1e6))
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.stream = _WholeLines(connection.stream, client)


class _WholeLines:
    """Reads Java's answers, one line each. Raises on an incomplete line, where py4j would accept it or resend."""

    def __init__(self, stream: Any, client: Any) -> None:
        self._stream, self._client = stream, client
        self.close = stream.close

    def readline(self) -> bytes:
        line: bytes = self._stream.readline()
        if not line.endswith(b"\n"):
            self._client.lost = True  # Java may still be working on the command
            raise TimeoutError(f"Java gave no answer for {ANSWER_S:g} s, or has ended")
        return line


def _answers(env: Any) -> bool:
    """Returns True if an environment's process is alive and its server answers."""
    from py4j.protocol import Py4JError

    if env._gateway.java_process.poll() is not None:
        return False
    try:
        return bool(env._gateway.jvm.System.nanoTime())
    except (OSError, Py4JError):
        return False


_PATCHING = threading.Lock()


def launcher_of(module: str) -> SharedLauncher:
    """Replaces py4j's `launch_gateway` in a module by a shared launcher and returns it.

    Raises:
        RecipeError: Java is not installed.
    """
    require_java()
    names = vars(import_module(module))
    with _PATCHING:
        if not isinstance(names["launch_gateway"], SharedLauncher):
            names["launch_gateway"] = SharedLauncher(names["launch_gateway"])
        launcher: SharedLauncher = names["launch_gateway"]
    return launcher


class SharedLauncher:
    """Starts a py4j server in a process with free capacity, or in a new one."""

    def __init__(self, launch: Callable[..., tuple[int, Any]]) -> None:
        self.launch, self.running = launch, list[_Process]()
        self._lock = threading.Lock()

    def __call__(self, javaopts: Sequence[str] = (), **settings: Any) -> tuple[int, _ProcessHandle]:
        """Returns the server's port and a handle of its process, like `launch_gateway`."""
        with self._lock:
            self.running = [each for each in self.running if each.java.poll() is None]
            process = next((each for each in self.running if len(each.handles) < GAMES), None)
            if process is None:
                process = _Process(*self.launch(javaopts=[*javaopts, *OPTIONS], **settings))
                self.running.append(process)
            port, handle = process.start_server(), _ProcessHandle(process.java)
            process.handles.add(handle)
            return port, handle


class _Process:
    """Java process.

    Attributes:
        handles: handles of its environments.
    """

    def __init__(self, port: int, java: Any) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        self.java = java
        self.handles = weakref.WeakSet[_ProcessHandle]()
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        _limit_waits(self._gateway)
        self._jvm = self._gateway.jvm

    def start_server(self) -> int:
        """Starts a py4j server with its own class loader and returns its port.

        All calls use reflection, because py4j caches methods by class name, regardless of the loader.
        """
        jvm = self._jvm
        paths = jvm.System.getProperty("java.class.path").split(os.pathsep)
        urls = self._array(jvm.java.net.URL, *(jvm.java.io.File(path).toURI().toURL() for path in paths))
        loader = jvm.java.net.URLClassLoader(urls, jvm.ClassLoader.getPlatformClassLoader())
        # By default py4j loads classes by the loader of the thread, which all servers would share.
        strategy = self._construct(loader.loadClass("py4j.reflection.RootClassLoadingStrategy"))
        wanted = loader.loadClass("py4j.reflection.ClassLoadingStrategy")
        self._invoke(
            loader.loadClass("py4j.reflection.ReflectionUtil"), "setClassLoadingStrategy", None, (wanted, strategy)
        )
        kind = loader.loadClass("py4j.GatewayServer")
        server = self._construct(kind, (jvm.Object._java_lang_class, None), (jvm.Integer.TYPE, 0))
        self._invoke(kind, "start", server)
        return int(self._invoke(kind, "getListeningPort", server))

    def _construct(self, kind: Any, *arguments: tuple[Any, Any]) -> Any:
        """Constructs an object. Each argument: its declared class and its value."""
        return kind.getConstructor(self._classes(arguments)).newInstance(self._values(arguments))

    def _invoke(self, kind: Any, name: str, owner: Any, *arguments: tuple[Any, Any]) -> Any:
        """Invokes a method of a class and returns its result."""
        return kind.getMethod(name, self._classes(arguments)).invoke(owner, self._values(arguments))

    def _classes(self, arguments: Sequence[tuple[Any, Any]]) -> Any:
        return self._array(self._jvm.Class, *(declared for declared, _ in arguments))

    def _values(self, arguments: Sequence[tuple[Any, Any]]) -> Any:
        return self._array(self._jvm.Object, *(value for _, value in arguments))

    def _array(self, kind: Any, *items: Any) -> Any:
        array = self._gateway.new_array(kind, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array


class _ProcessHandle:
    """Handle of a shared process. An environment ends its process by a newline to `stdin`, which has no effect here."""

    def __init__(self, process: Any) -> None:
        self.poll: Callable[[], int | None] = process.poll
        self.stdin = io.BytesIO()
