"""Server of the code under test, in a sandbox without tests: one process per test process.

`python3 agentrl_server.py`, in the folder of the agent's files; its pipes are one end of `agentrl_mux.py`. Its output
is trusted only as plain data, because the code under test shares its process and may forge it.

Requests are lists: an operation and its arguments. Answers: `ok` or `raise`, the value, the printed output, and the
arguments changed by the code. In between the code may send `call` (a function passed by a test) and `input`.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress

from agentrl_mux import Mux
from agentrl_names import SPECIAL_METHODS
from agentrl_plain import ERRORS, Codec, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable
    from types import ModuleType
    from typing import IO, Any, NoReturn

    Changed = list[Any]
    """Arguments that a call changed, by index or name."""

SHOWN = 1 << 20
"""Maximum characters of output per answer."""

MUTABLE = ("L", "T", "S", "D", "DO", "DC", "Q", "BA")
"""Tags of arguments that a call may change; tuples may contain mutable items."""

_CHANGING = {list, set, dict, OrderedDict, defaultdict, Counter, deque, bytearray}
_BASES: tuple[Any, ...] = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict)


class Passed:
    """Opaque object of the tests. The code can store and return it."""

    def __init__(self, server: Server, token: int) -> None:
        self._server, self._token = server, token


class PassedFunction(Passed):
    """Function of the tests, callable by the code."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._server.ask("call", self._token, args, kwargs)


class PassedIterator(Passed):
    """Iterator of the tests."""

    def __iter__(self) -> PassedIterator:
        return self

    def __next__(self) -> Any:
        found = self._server.ask("next", self._token, (), {})
        if not found:
            raise StopIteration
        return found[0]


class Input(io.TextIOBase):
    """Standard input, forwarded from the tests."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> Any:
        return self.server.ask("stdin", "read", (size,), {})

    def readline(self, size: int | None = -1) -> Any:
        return self.server.ask("stdin", "readline", (size,), {})


class Server:
    """Connection of one test process to the code."""

    def __init__(self, sock: socket.socket, root: str) -> None:
        self.sock, self.root = sock, root
        self.codec = Codec(self.refer, self.resolve)
        self.objects: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}  # of objects, by id
        self.classes: set[int] = set()  # numbers of those that the tests know
        self.passed: dict[int, Passed] = {}
        self.loop: AbstractEventLoop | None = None
        self.asking = threading.RLock()

    # The conversation

    def serve(self) -> NoReturn:
        while True:
            operation, *arguments = receive(self.sock)
            if operation == "program":
                self.program(*arguments)
            send(self.sock, self.answer(operation, arguments))

    def answer(self, operation: str, arguments: list[Any]) -> list[Any]:
        changed: Changed = []
        try:
            value = getattr(self, "op_" + operation)(changed, *arguments)
            answer = ["ok", self.codec.encode(value), None, changed]
        except BaseException as error:
            answer = ["raise", self.error(error), None, changed]
        answer[2] = [drained(sys.stdout), drained(sys.stderr)]
        return answer

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Sends a request to the tests during one of theirs. Serializes threads of the code."""
        with self.asking:
            send(self.sock, [operation, *map(self.codec.encode, arguments)])
            while True:
                kind, *rest = receive(self.sock)
                if kind == "ok":
                    return self.codec.decode(rest[0])
                if kind == "raise":
                    raise self.passed_error(*rest)
                send(self.sock, self.answer(kind, rest))

    def passed_error(self, token: int | None, name: str, args: Any, text: str) -> BaseException:
        """Recreates an exception raised by a function of the tests."""
        kind: type[BaseException] = ERRORS.get(name, Exception)
        try:
            error = kind(*self.codec.decode(args))
        except Exception:
            error = RuntimeError(text)
        with suppress(AttributeError):
            error.__agentrl_token__ = token  # type: ignore[attr-defined]
        return error

    # Objects

    def refer(self, value: Any) -> list[Any]:
        if type(value) is Method:
            return ["M", value.target, value.name]
        if type(value) is Argument:
            return ["=", value.key]
        if isinstance(value, Passed):
            return ["P", value._token]
        if inspect.ismodule(value):
            return ["O", self.number(value), value.__name__]
        if isinstance(value, type):
            return self.described(value)
        if isinstance(value, BaseException):
            return self.error(value)
        if inspect.isawaitable(value):
            return ["A", self.number(value)]
        return ["H", self.number(value), self.described(type(value))]

    def number(self, value: Any) -> int:
        """Returns the number of an object. Objects are kept forever, so that numbers stay unique."""
        if id(value) not in self.numbers:
            self.objects[len(self.objects)] = value
            self.numbers[id(value)] = len(self.objects) - 1
        return self.numbers[id(value)]

    def described(self, kind: type) -> list[Any]:
        number = self.number(kind)
        if number in self.classes:
            return ["K", number]
        self.classes.add(number)
        own = {name for base in kind.__mro__ if base is not object for name in vars(base)}
        bases = [self.codec.encode(base) for base in kind.__bases__ if base is not object]
        about = [kind.__module__, kind.__qualname__, bases, sorted(own & SPECIAL_METHODS), sorted(overridden(kind))]
        return ["K", number, *about]

    def resolve(self, data: list[Any]) -> Any:
        tag, *rest = data
        if tag in ("H", "O", "K"):
            return self.objects[rest[0]]
        if tag == "M":
            return getattr(self.resolve(rest[0]), rest[1])
        if tag == "P":
            if rest[0] not in self.passed:
                kind = {"function": PassedFunction, "iterator": PassedIterator}.get(rest[1], Passed)
                self.passed[rest[0]] = kind(self, rest[0])
            return self.passed[rest[0]]
        if tag == "E":
            return self.passed_error(None, *rest)
        raise ValueError(tag)

    def error(self, error: BaseException) -> list[Any]:
        token = getattr(error, "__agentrl_token__", None)
        if token is not None:
            return ["P", token]
        try:
            args = self.codec.encode(list(error.args))
        except Exception:
            args = self.codec.encode([str(argument) for argument in error.args])
        try:
            text = str(error)
        except BaseException:
            text = ""
        return ["E", self.number(error), self.codec.encode(type(error)), args, text]

    # Operations. `changed` collects, by index or name, the arguments changed by a call.

    def op_import(self, changed: Changed, name: str, path: str) -> tuple[ModuleType, list[str]]:
        """Imports a module by name from a file; derives its package from the path."""
        parts = name.split(".")
        stem = os.path.splitext(path)[0].split("/")
        if stem[-1] == "__init__":
            stem.pop()
        if stem[-len(parts) :] == parts:
            folder = os.path.join(self.root, *stem[: -len(parts)])
            if folder not in sys.path:
                sys.path.insert(0, folder)
            module = importlib.import_module(name)
        else:
            spec = importlib.util.spec_from_file_location(name, os.path.join(self.root, path))
            if spec is None or spec.loader is None:
                raise ImportError(f"{path} is no Python file")
            if self.root not in sys.path:
                sys.path.insert(0, self.root)
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        public = getattr(module, "__all__", None)
        if public is None:
            public = [key for key, value in vars(module).items() if key[0] != "_" and not inspect.ismodule(value)]
        return module, [str(key) for key in public]

    def op_get(self, changed: Changed, target: list[Any], name: str) -> Any:
        owner = self.resolve(target)
        value = getattr(owner, name)
        if inspect.ismethod(value) and value.__self__ is owner and value.__name__ == name:
            return Method(target, name)
        return value

    def op_set(self, changed: Changed, target: list[Any], name: str, value: Any) -> None:
        setattr(self.resolve(target), name, self.codec.decode(value))

    def op_del(self, changed: Changed, target: list[Any], name: str) -> None:
        delattr(self.resolve(target), name)

    def op_names(self, changed: Changed, target: list[Any]) -> list[str]:
        return [str(name) for name in dir(self.resolve(target))]

    def op_call(self, changed: Changed, target: list[Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        return self.called(changed, self.resolve(target), args, kwargs)

    def op_special(self, changed: Changed, target: list[Any], name: str, args: list[Any]) -> Any:
        """Calls a special method, looked up on the class as in Python."""
        owner = self.resolve(target)
        if name in OPERATORS:
            return OPERATORS[name](owner, *map(self.codec.decode, args))
        method = getattr(type(owner), name)
        return self.called(changed, lambda *rest: method(owner, *rest), args, {})

    def op_next(self, changed: Changed, target: list[Any], most: int) -> tuple[list[Any], str, Any]:
        """Returns up to `most` items of an iterator, then its end or error."""
        iterator = self.resolve(target)
        items: list[Any] = []
        try:
            while len(items) < most:
                items.append(next(iterator))
        except StopIteration as end:
            return items, "end", end.value
        except BaseException as error:
            if not items:
                raise
            return items, "raise", error
        return items, "", None

    def op_await(self, changed: Changed, target: int) -> Any:
        """Runs an awaitable to completion, on the code's own event loop."""
        import asyncio

        async def finish() -> Any:
            return await self.objects[target]

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(finish())

    def op_plain(self, changed: Changed, target: list[Any]) -> list[Any]:
        """Returns in a list the plain data of an object of a subclass of str, int, list, ...; empty for others."""
        value = self.resolve(target)
        for kind in _BASES:
            if isinstance(value, kind) and type(value) is not kind:
                if issubclass(kind, (list, tuple, set, frozenset)):
                    return [kind(kind.__iter__(value))]
                if kind is dict:
                    return [dict(dict.items(value))]
                return [{str: str.__str__, int: int.__int__, float: float.__float__}.get(kind, kind)(value)]
        return []

    def called(self, changed: Changed, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Calls a function with plain copies of the arguments; records changed ones."""
        positional = [self.codec.decode(item) for item in args]
        named = {key: self.codec.decode(item) for key, item in kwargs.items()}
        decoded: list[tuple[int | str, Any]] = [*enumerate(positional), *named.items()]
        try:
            value = function(*positional, **named)
            for key, given in decoded:
                if value is given and type(given) in _CHANGING:
                    return Argument(key)
            return value
        finally:
            for (key, given), before in zip(decoded, [*args, *kwargs.values()]):  # noqa: B905 - Python 3.9
                if type(before) is list and before[0] in MUTABLE:
                    try:
                        after = self.codec.encode(given)
                    except Exception:
                        continue
                    if after != before:
                        changed.append([key, after])

    # Programs

    def program(self, path: str, module: str, argv: list[str]) -> NoReturn:
        """Runs a file as a separate program; sends its streams and exit code to the tests."""
        command = [sys.executable, *(["-m", module] if module else [os.path.join(self.root, path)]), *argv]
        running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert running.stdin
        assert running.stdout
        assert running.stderr
        lock = threading.Lock()

        def tell(*message: Any) -> None:
            with lock:
                send(self.sock, list(message))

        def carry(stream: IO[bytes], name: str) -> None:
            while True:
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    return
                tell(name, data.decode("latin-1"))

        def feed(entry: IO[bytes]) -> None:
            try:
                while True:
                    kind, *rest = receive(self.sock)
                    if kind == "eof":
                        entry.close()
                    else:
                        entry.write(rest[0].encode("latin-1"))
                        entry.flush()
            except (OSError, ValueError):
                return

        threading.Thread(target=feed, args=(running.stdin,), daemon=True).start()
        streams = [
            threading.Thread(target=carry, args=(running.stdout, "out"), daemon=True),
            threading.Thread(target=carry, args=(running.stderr, "err"), daemon=True),
        ]
        for stream in streams:
            stream.start()
        code = running.wait()
        for stream in streams:
            stream.join()
        tell("exit", code)
        os._exit(0)


class Argument:
    """Reference to an argument of the call, by index or name, returned by the code: the same object in the tests."""

    def __init__(self, key: int | str) -> None:
        self.key = key


def overridden(kind: type) -> set[str]:
    """Returns the special methods that a class derived from plain data overrides; enum's own do not count."""
    plain = next((k for k, base in enumerate(kind.__mro__) if base in _BASES), 0)
    own = {name: value for base in kind.__mro__[:plain] for name, value in vars(base).items()}
    return {name for name in own.keys() & SPECIAL_METHODS if getattr(own[name], "__module__", "") != "enum"}


class Method:
    """Bound method, sent without a number."""

    def __init__(self, target: list[Any], name: str) -> None:
        self.target, self.name = target, name


OPERATORS: dict[str, Callable[..., Any]] = {
    "__eq__": lambda a, b: a == b,
    "__ne__": lambda a, b: a != b,
    "__lt__": lambda a, b: a < b,
    "__le__": lambda a, b: a <= b,
    "__gt__": lambda a, b: a > b,
    "__ge__": lambda a, b: a >= b,
    "__hash__": hash,
    "__bool__": bool,
    "__repr__": repr,
    "__str__": str,
    "__format__": format,
    "__contains__": lambda a, b: b in a,
    "__getitem__": lambda a, b: a[b],
    "__len__": len,
    "__iter__": iter,
}
"""Special methods with a default or several implementations."""


def drained(stream: Any) -> str:
    stream.flush()
    buffer = stream.buffer
    data: bytes = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return data.decode("utf-8", "replace")[:SHOWN]


def captured() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)


def serve(sock: socket.socket, root: str) -> NoReturn:
    """Serves requests in the child process, which has no output other than its answers."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    server = Server(sock, root)
    sys.stdout, sys.stderr, sys.stdin = captured(), captured(), Input(server)
    builtins.input = lambda prompt="": server.ask("input", str(prompt), (), {})
    try:
        server.serve()
    except BaseException:
        os._exit(1)


def main() -> NoReturn:
    root = os.getcwd()
    sys.argv = [""]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    children: dict[int, int] = {}

    def opened(number: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        children[number] = os.fork()
        if children[number] == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for link in mux.links.values():
                link.sock.close()
            mux.selector.close()
            ours.close()
            serve(theirs, root)
        theirs.close()
        return ours

    def closed(number: int) -> None:
        """Kills the child of a finished test: running code would slow down the next one."""
        with suppress(ProcessLookupError):
            os.kill(children.pop(number), signal.SIGKILL)

    mux = Mux(opened, closed)
    mux.run()


if __name__ == "__main__":
    main()
