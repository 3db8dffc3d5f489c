"""Environments that run in Java (py4j): textworld-express and ScienceWorld."""

from __future__ import annotations

import io
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from agentrl.types.errors import RecipeError

GAMES = 16
"""Of one Java process: all are lost if it dies, and with many more the loading of classes gets slow."""
OPTIONS = (
    # Sets have the order of their items' hashes, which Java draws: with one hash for all, a world is always the same.
    *("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"),
    # Each game's classes are compiled anew, and played for some hundred moves: quickly, with space for all.
    *("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=512m", "-XX:+UseSerialGC"),
)
"""Of Java."""


def require_java() -> None:
    """Raises RecipeError: there is no Java."""
    if shutil.which("java") is None:
        remedy = "apt-get install --no-install-recommends default-jre-headless"
        raise RecipeError("there is no program 'java'", remedy=remedy)


class JavaGames:
    """Environments that share Java processes, each kept for the next game.

    Two games disturb each other where their worlds are made of what is static in Java. So each environment has a class
    loader of its own: all classes of the package exist once for each. A process for each would take twice the time and
    five times the memory or more.

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
        processes_of(self._module)
        return self._start()

    def give(self, env: Any) -> None:
        """Takes an environment back, for the next game."""
        self._idle.append(env)

    @contextmanager
    def lent(self) -> Iterator[Any]:
        """An environment for a while."""
        env = self.take()
        try:
            yield env
        finally:
            self.give(env)


def _answers(env: Any) -> bool:
    """Whether an environment's process lives, and its server there."""
    from py4j.protocol import Py4JError

    if env._gateway.java_process.poll() is not None:
        return False
    try:
        return bool(env._gateway.jvm.System.nanoTime())
    except (OSError, Py4JError):
        return False


_FIRST = threading.Lock()


def processes_of(module: str) -> Processes:
    """The processes of the environments of a module, which start in them from now on.

    Raises:
        RecipeError: there is no Java.
    """
    require_java()
    names = vars(import_module(module))
    with _FIRST:
        if not isinstance(names["launch_gateway"], Processes):
            names["launch_gateway"] = Processes(names["launch_gateway"])
        processes: Processes = names["launch_gateway"]
    return processes


class Processes:
    """In place of py4j's `launch_gateway`: a server in a process that has room, or in a new one."""

    def __init__(self, launch: Callable[..., tuple[int, Any]]) -> None:
        self.launch, self.running = launch, list[_Process]()
        self._lock = threading.Lock()

    def __call__(self, javaopts: Sequence[str] = (), **settings: Any) -> tuple[int, _Guest]:
        """A port, and what stands for the process there."""
        with self._lock:
            self.running = [each for each in self.running if each.java.poll() is None]
            process = next((each for each in self.running if len(each.guests) < GAMES), None)
            if process is None:
                process = _Process(*self.launch(javaopts=[*javaopts, *OPTIONS], **settings))
                self.running.append(process)
            port, guest = process.another(), _Guest(process.java)
            process.guests.add(guest)
            return port, guest


class _Process:
    """A Java process.

    Attributes:
        guests: of the environments that it has.
    """

    def __init__(self, port: int, java: Any) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        self.java = java
        self.guests = weakref.WeakSet[_Guest]()
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
        self._jvm = self._gateway.jvm

    def another(self) -> int:
        """Starts a py4j server whose classes are its own. Its port.

        Everything goes through reflection: py4j takes classes of one name for one class.
        """
        jvm = self._jvm
        paths = jvm.System.getProperty("java.class.path").split(os.pathsep)
        urls = self._array(jvm.java.net.URL, *(jvm.java.io.File(path).toURI().toURL() for path in paths))
        loader = jvm.java.net.URLClassLoader(urls, jvm.ClassLoader.getPlatformClassLoader())
        # By default py4j asks the thread's loader, which is the process's own.
        strategy = self._made(loader.loadClass("py4j.reflection.RootClassLoadingStrategy"))
        wanted = loader.loadClass("py4j.reflection.ClassLoadingStrategy")
        self._called(
            loader.loadClass("py4j.reflection.ReflectionUtil"), "setClassLoadingStrategy", None, (wanted, strategy)
        )
        kind = loader.loadClass("py4j.GatewayServer")
        server = self._made(kind, (jvm.Object._java_lang_class, None), (jvm.Integer.TYPE, 0))
        self._called(kind, "start", server)
        return int(self._called(kind, "getListeningPort", server))

    def _made(self, kind: Any, *arguments: tuple[Any, Any]) -> Any:
        """An object of a class. Each argument: its declared class, and its value."""
        return kind.getConstructor(self._classes(arguments)).newInstance(self._values(arguments))

    def _called(self, kind: Any, name: str, owner: Any, *arguments: tuple[Any, Any]) -> Any:
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


class _Guest:
    """A process as one of its games sees it. A newline to `stdin` would end it: an environment says that at its end."""

    def __init__(self, process: Any) -> None:
        self.poll: Callable[[], int | None] = process.poll
        self.stdin = io.BytesIO()
