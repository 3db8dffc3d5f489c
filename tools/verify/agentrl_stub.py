"""Stubs in the tests for modules of the code under test, which runs in a separate sandbox.

A stub of the same name calls `become`: attributes, calls and operators are forwarded to `agentrl_server.py`. Plain data
comes back as such; other objects as handles. The code cannot make the tests pass by force:

- if its process dies, the test process exits with code 70;
- `SystemExit` from the code does not end a test process with 0, and its StopIteration ends no loop of the tests;
- operands of comparisons (==, <, in, arithmetic) are never sent to the code to judge: a handle equals no plain data,
  unless its class derives from plain data (an IntEnum, a namedtuple), which is then compared here.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import socket
import sys
import threading
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

from agentrl_names import ERROR_MODULES
from agentrl_objects import (
    LOST,
    RUNNERS,
    SPECIAL,
    BoundMethod,
    Exit,
    Module,
    Remote,
    RemoteError,
    RemoteMeta,
    code,
    connect,
    lost,
    made,
    reference,
)
from agentrl_plain import ERRORS, Codec, Malformed, assign, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec
    from typing import Any, NoReturn

    Local = Iterable[tuple[int | str, Any]]
    """Arguments of a call by index or name."""

HERE = os.path.dirname(os.path.abspath(__file__))
PLAIN = (bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict)
SOCKET = os.path.join(HERE, "socket")
TRUST = os.path.join(HERE, "trust_operators")


class Code:
    """Connection to the code's process."""

    def __init__(self) -> None:
        self.codec = Codec(self.refer, self.resolve)
        self.lock, self.pid, self.trust = threading.RLock(), os.getpid(), os.path.exists(TRUST)
        self.handles: dict[int, Any] = {}
        self.classes: dict[int, type] = {}
        self.modules: dict[int, Module] = {}
        self.passed: list[Any] = []
        self.tokens: dict[int, int] = {}  # places in `passed`, by id
        self.given: dict[int, set[str]] = {}  # names imported by `import *`, by module
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            self.sock.connect(SOCKET)
        except OSError as error:
            lost(error)

    def request(self, operation: str, *arguments: Any, local: Local = (), ends: bool = False) -> Any:
        """Sends a request; returns the value or raises the code's exception.

        Args:
            local: arguments of a call by index or name; the code's changes are copied into them.
            ends: True if StopIteration is a valid answer, as for `next`.
        """
        if os.getpid() != self.pid:
            raise RuntimeError("a fork of the test process cannot use the code under test; start a new process")
        with self.lock:
            try:
                send(self.sock, [operation, *arguments])
                while True:
                    kind, *rest = receive(self.sock)
                    if kind in ("ok", "raise"):
                        break
                    send(self.sock, self.asked(kind, rest))
                value, (out, err), changed = rest
                self.show(out, err)
                if changed:
                    self.carry_over(changed, dict(local))
                if kind == "raise":
                    value = self.error_of(value)
                elif type(value) is list and value[:1] == ["="]:
                    value = dict(local)[value[1]]
                else:
                    value = self.codec.decode(value)
            except OSError as error:
                lost(error)
            except (Malformed, KeyError, TypeError, ValueError, IndexError, RecursionError, OverflowError) as error:
                lost(f"it sent no plain data ({type(error).__name__}: {error})")
        if kind == "raise":
            if isinstance(value, (StopIteration, StopAsyncIteration, GeneratorExit)) and not ends:
                value = RuntimeError("the code raised " + type(value).__name__)
            raise value
        return value

    def call(self, target: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any], ends: bool = False) -> Any:
        encoded = [self.codec.encode(item) for item in args], {k: self.codec.encode(v) for k, v in kwargs.items()}
        return self.request("call", target, *encoded, local=[*enumerate(args), *kwargs.items()], ends=ends)

    def special(self, target: list[Any], name: str, *args: Any, ends: bool = False) -> Any:
        encoded = [self.codec.encode(item) for item in args]
        return self.request("special", target, name, encoded, local=enumerate(args), ends=ends)

    def asked(self, kind: str, rest: list[Any]) -> list[Any]:
        """Answers a request of the code during one of ours."""
        try:
            if kind in ("call", "next"):
                token, args, kwargs = (self.codec.decode(item) for item in rest)
                function = self.passed[token]
                if kind == "next":
                    return ["ok", self.codec.encode([item for _, item in zip(range(1), function)])]  # noqa: B905
                if not callable(function):
                    raise Malformed("it called what is no function")
                return ["ok", self.codec.encode(function(*args, **kwargs))]
            if kind in ("stdin", "input"):
                what, args, _ = (self.codec.decode(item) for item in rest)
                if kind == "stdin":
                    return ["ok", getattr(sys.stdin, "read" if what == "read" else "readline")(*args)]
                return ["ok", self.codec.encode(asked_input(str(what), self))]
            raise Malformed("it asked for " + kind)
        except (Malformed, KeyError, IndexError):
            raise
        except BaseException as error:
            base = next(kind.__name__ for kind in type(error).__mro__ if ERRORS.get(kind.__name__) is kind)
            return ["raise", self.token(error), base, self.codec.encode([str(item) for item in error.args]), str(error)]

    def show(self, out: Any, err: Any) -> None:
        """Writes the code's output to captured streams; never to the real ones, which test runners may parse."""
        for text, stream, real in ((out, sys.stdout, sys.__stdout__), (err, sys.stderr, sys.__stderr__)):
            if text and stream is not real and type(text) is str:
                stream.write(text)

    def carry_over(self, changed: list[Any], local: dict[Any, Any]) -> None:
        for key, data in changed:
            if key in local:
                assign(local[key], self.codec.decode(data))

    # References

    def token(self, value: Any) -> int:
        if id(value) not in self.tokens:
            self.tokens[id(value)] = len(self.passed)
            self.passed.append(value)
        return self.tokens[id(value)]

    def refer(self, value: Any) -> list[Any]:
        if isinstance(value, (Remote, BoundMethod, Module)) or type(value) is RemoteMeta:
            return reference(value)
        if isinstance(value, BaseException):
            number = vars(value).get("_agentrl_number")
            if number is not None:
                return ["H", number]
            base = next(kind.__name__ for kind in type(value).__mro__ if ERRORS.get(kind.__name__) is kind)
            return ["E", base, self.codec.encode([str(item) for item in value.args]), str(value)]
        kind = "function" if callable(value) else "iterator" if hasattr(type(value), "__next__") else "object"
        return ["P", self.token(value), kind]

    def resolve(self, data: list[Any]) -> Any:
        tag, *rest = data
        if tag == "H":
            number, described = rest
            if number not in self.handles:
                kind = self.codec.decode(described)
                if not (type(kind) is RemoteMeta and issubclass(kind, Remote)):
                    raise Malformed("no class of a handle")
                self.handles[number] = made(kind, number)
            return self.handles[number]
        if tag == "K":
            if rest[0] not in self.classes:
                self.classes[rest[0]] = self.make_class(*rest)
            return self.classes[rest[0]]
        if tag == "O":
            return self.module(*rest)
        if tag == "M":
            return BoundMethod(*rest)
        if tag == "A":
            return awaited(*rest)
        if tag == "P":
            return self.passed[rest[0]]
        if tag == "E":
            return self.error_of(data)
        raise Malformed("no tag " + tag)

    def module(self, number: int, name: str) -> Module:
        if number not in self.modules:
            found = self.modules[number] = Module(name)
            found.__dict__["_agentrl_number"] = number
        return self.modules[number]

    def error_of(self, data: list[Any]) -> BaseException:
        tag, *rest = data
        if tag == "P":
            error = self.passed[rest[0]]
        else:
            number, kind, args, text = rest
            kind, args = self.codec.decode(kind), self.codec.decode(args)
            kind = Exit if kind is SystemExit else kind
            if not issubclass(kind, BaseException):
                raise Malformed("no exception")
            try:
                error = kind.__new__(kind, *args)
                BaseException.__init__(error, *args) if issubclass(kind, RemoteError) else error.__init__(*args)
            except Exception:
                error = kind.__new__(kind)
                error.args = tuple(args)
            if issubclass(kind, RemoteError):
                vars(error).update(_agentrl_number=number, _agentrl_text=str(text), _agentrl_tainted=False)
        if not isinstance(error, BaseException):
            raise Malformed("no exception")
        return error

    def make_class(
        self, number: int, module: str, name: str, bases: list[Any], special: list[str], own: list[str]
    ) -> type:
        bases = [self.codec.decode(base) for base in bases]
        if any(issubclass(base, BaseException) for base in bases):
            if module in ERROR_MODULES:
                known = getattr(importlib.import_module(module), name, None)
                if isinstance(known, type) and issubclass(known, Exception):
                    return known
            roots = [Exit if base is SystemExit else base for base in bases if issubclass(base, BaseException)]
            if not any(issubclass(base, RemoteError) for base in roots):
                roots.insert(0, RemoteError)
        else:
            roots = [base for base in bases if type(base) is RemoteMeta] or [Remote]
        about: dict[str, Any] = {key: SPECIAL[key] for key in special if key in SPECIAL}
        plain = next((base for base in bases if type(base) is not RemoteMeta and base in PLAIN), None)
        if plain is not None:
            about["_agentrl_plain"] = plain
        about.update(_agentrl_class=number, _agentrl_own=frozenset(own), __module__=str(module), __slots__=())
        name = str(name).rpartition(".")[2]
        try:
            return RemoteMeta.make(name, tuple(roots), about)
        except TypeError:  # bases incompatible without the omitted ones
            return RemoteMeta.make(name, (roots[0],), about)


_INPUT = builtins.input


def asked_input(prompt: str, code: Code) -> str:
    if builtins.input is not _INPUT:
        return builtins.input(prompt)
    code.show(prompt, "")
    line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line")
    return line.rstrip("\n")


def awaited(number: int) -> Any:
    async def wait() -> Any:
        return code().request("await", number, ends=True)

    return wait()


def become(name: str, path: str, yields: bool = False) -> None:
    """Turns the module being imported into a stub of the code's file `path`.

    Args:
        yields: a library or a module of the tests with this name is imported instead.
    """
    module = sys.modules[name]
    if yields and "." not in name and (spec := other(name)) is not None:
        sys.modules[name] = library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)  # type: ignore[union-attr]  # `other` returns none without
        return
    module.__class__ = Module
    found, public = code().request("import", name, path)
    if not isinstance(found, Module):
        lost("it has no module " + name)
    number = found.__dict__["_agentrl_number"]
    code().modules[number] = module  # type: ignore[assignment]  # its class is Module since above
    module.__dict__["_agentrl_number"] = number
    # `import *` must not replace names that the tests judge with.
    known = {*vars(builtins), *RUNNERS, *getattr(sys, "stdlib_module_names", sys.builtin_module_names)}
    module.__dict__["_agentrl_public"] = [
        key for key in public if type(key) is str and key not in known and key.isidentifier()
    ]


def other(name: str) -> ModuleSpec | None:
    """Returns the spec of a module of this name that is no stub."""
    found = [BuiltinImporter.find_spec(name), FrozenImporter.find_spec(name)]
    found += [PathFinder.find_spec(name, [folder]) for folder in sys.path]
    specs = (spec for spec in found if spec is not None and spec.loader is not None)  # a folder without code has none
    return next((spec for spec in specs if not is_stub(spec.origin)), None)


def is_stub(path: str | None) -> bool:
    """Returns True for the file of a stub."""
    if path is None or not path.endswith(".py"):
        return False
    with open(path, "rb") as file:
        return b"agentrl_stub.become(" in file.read()


def program(path: str, module: str) -> NoReturn:
    """Runs a file in the code's sandbox in place of this program: forwards arguments, streams and exit code."""
    link = code().sock
    send(link, ["program", path, module, sys.argv[1:]])

    def feed() -> None:
        try:
            while True:
                data = os.read(0, 1 << 16)
                if not data:
                    send(link, ["eof"])
                    return
                send(link, ["in", data.decode("latin-1")])
        except OSError:
            return

    threading.Thread(target=feed, daemon=True).start()
    outputs = {"out": 1, "err": 2}
    try:
        while True:
            kind, value = receive(link)
            if kind == "exit":
                os._exit(value if 0 <= value < 256 else 128 - value if -128 < value < 0 else LOST)
            data = value.encode("latin-1")
            while data:
                data = data[os.write(outputs[kind], data) :]
    except (OSError, Malformed, ValueError, KeyError, TypeError, AttributeError) as error:
        lost(error)


connect(Code())
