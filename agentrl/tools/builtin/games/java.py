"""Environments that run in Java (py4j): textworld-express and ScienceWorld."""

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
"""Most games of one Java process. If it dies, all of them fail; with many more, loading of classes gets slow."""
ANSWER_S = 120.0
"""Seconds that Java may take for an answer. Many games that open at once wait for each other."""
OPTIONS = (
    # Java iterates sets in the order of identity hashes, which are random. With one hash for all, worlds repeat.
    *("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"),
    # Every game compiles its own copies of the classes and lasts some hundred moves: compile fast, reserve memory.
    *("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=512m", "-XX:+UseSerialGC"),
)
"""Options of every Java process."""


def require_java() -> None:
    """Raises RecipeError: there is no Java."""
    if shutil.which("java") is None:
        remedy = "apt-get install --no-install-recommends default-jre-headless"
        raise RecipeError("there is no program 'java'", remedy=remedy)


class JavaGames:
    """Environments that share Java processes, each kept for the next game.

    These packages keep a game's world in static fields, so two games that shared classes would disturb each other. Each
    environment therefore has its own class loader, and with it its own copy of all classes and static fields. A process
    per environment would take several times the time and the memory.

    Args:
        start: makes an environment, with its process in `_gateway.java_process`.
        module: name of the module whose `launch_gateway` it calls.
    """

    def __init__(self, start: Callable[[], Any], module: str) -> None:
        self._start, self._module = start, module
        self._idle: list[Any] = []

    def take(self) -> Any:
        """An environment that nobody else plays.

        Raises:
            RecipeError: there is no Java.
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
        """Takes an environment back, for the next game, unless it has not answered."""
        if not getattr(env._gateway._gateway_client, "lost", False):
            self._idle.append(env)

    @contextmanager
    def lent(self) -> Iterator[Any]:
        """An environment for a while."""
        env = self.take()
        try:
            yield env
        finally:
            self.give(env)


def _limit_waits(gateway: Any) -> None:
    """Ends a wait for Java with an error, in the connections that there are and in those to come."""
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
    # Not by `settimeout`, which adds a system call to every read and write.
    seconds, part = divmod(ANSWER_S, 1)
    limit = struct.pack("ll", int(seconds), int(part * 1e6))
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.stream = _WholeLines(connection.stream, client)


class _WholeLines:
    """Java's answers, one line each. An incomplete line is an error: py4j would read it, or send its command again."""

    def __init__(self, stream: Any, client: Any) -> None:
        self._stream, self._client = stream, client
        self.close = stream.close

    def readline(self) -> bytes:
        line: bytes = self._stream.readline()
        if not line.endswith(b"\n"):
            self._client.lost = True  # Java may still be working on it
            raise TimeoutError(f"Java gave no answer for {ANSWER_S:g} s, or has ended")
        return line


def _answers(env: Any) -> bool:
    """Whether an environment's process lives, and its server there."""
    from py4j.protocol import Py4JError

    if env._gateway.java_process.poll() is not None:
        return False
    try:
        return bool(env._gateway.jvm.System.nanoTime())
    except (OSError, Py4JError):
        return False


_PATCHING = threading.Lock()


def launcher_of(module: str) -> SharedLauncher:
    """The launcher that a module's environments use from now on, in place of py4j's `launch_gateway`.

    Raises:
        RecipeError: there is no Java.
    """
    require_java()
    names = vars(import_module(module))
    with _PATCHING:
        if not isinstance(names["launch_gateway"], SharedLauncher):
            names["launch_gateway"] = SharedLauncher(names["launch_gateway"])
        launcher: SharedLauncher = names["launch_gateway"]
    return launcher


class SharedLauncher:
    """Starts a py4j server in a process that has room, or in a new one."""

    def __init__(self, launch: Callable[..., tuple[int, Any]]) -> None:
        self.launch, self.running = launch, list[_Process]()
        self._lock = threading.Lock()

    def __call__(self, javaopts: Sequence[str] = (), **settings: Any) -> tuple[int, _ProcessHandle]:
        """The server's port and a handle of its process, as `launch_gateway` returns them."""
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
    """A Java process.

    Attributes:
        handles: those of its environments.
    """

    def __init__(self, port: int, java: Any) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        self.java = java
        self.handles = weakref.WeakSet[_ProcessHandle]()
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        _limit_waits(self._gateway)
        self._jvm = self._gateway.jvm

    def start_server(self) -> int:
        """Starts a py4j server with a class loader of its own. Returns its port.

        All calls use reflection, because py4j caches methods by the name of a class, whichever loader it comes from.
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
        """An object of a class. Each argument: its declared class, and its value."""
        return kind.getConstructor(self._classes(arguments)).newInstance(self._values(arguments))

    def _invoke(self, kind: Any, name: str, owner: Any, *arguments: tuple[Any, Any]) -> Any:
        """What a method of a class returns."""
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
    """A shared process as one environment sees it. It ends its process by a newline to `stdin`: here without effect."""

    def __init__(self, process: Any) -> None:
        self.poll: Callable[[], int | None] = process.poll
        self.stdin = io.BytesIO()
