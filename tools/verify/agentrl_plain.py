"""Codec of plain data between the code under test and its tests: tagged JSON, decoded to exactly the types listed here.

Decoding executes nothing: no pickle, no class names except those of the tables below. Other objects go to the two
hooks of a `Codec`, which convert them to references and back. Python 3.9+, standard library.

A message is a big-endian uint32 (length), then JSON. `None`, bool, float, str and ints below 2**63 are unchanged,
everything else is a list whose first item is a tag.
"""

from __future__ import annotations

import functools
import json
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from socket import socket
    from typing import Any

    Data = Any
    """What JSON holds. Each function checks what it needs of it."""

LARGEST = 64 << 20
"""Maximum bytes of a message."""

DEPTH = 200
"""Maximum nesting of containers."""

_SCALARS = {type(None), bool, float, str}
_FLAT = {*_SCALARS, int}
_WIDE = 1 << 63


class Malformed(Exception):
    """A received message is invalid."""


BUILT_IN: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, range, object, type, slice,
    )
}  # fmt: skip
BUILT_IN["NoneType"] = type(None)
ERRORS: dict[str, Any] = {
    name: kind
    for name, kind in vars(__import__("builtins")).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
SINGLETONS = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}

_SEQUENCES: dict[str, Any] = {"L": list, "T": tuple, "S": set, "F": frozenset}
_MAPPINGS: dict[str, Any] = {"D": dict, "DO": OrderedDict, "DC": Counter}
_TAGS: dict[type, str] = {kind: tag for tag, kind in {**_SEQUENCES, **_MAPPINGS}.items()}
_TAGS[defaultdict] = "D"  # its factory is code, and equality ignores it

# By module and name: conversion of a value to plain data and back.
_RICH: dict[tuple[str, str], tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    ("decimal", "Decimal"): (str, lambda kind, text: kind(text)),
    ("fractions", "Fraction"): (lambda v: [v.numerator, v.denominator], lambda kind, parts: kind(*parts)),
    ("uuid", "UUID"): (str, lambda kind, text: kind(text)),
    ("datetime", "datetime"): (lambda v: v.isoformat(), lambda kind, text: kind.fromisoformat(text)),
    ("datetime", "date"): (lambda v: v.isoformat(), lambda kind, text: kind.fromisoformat(text)),
    ("datetime", "time"): (lambda v: v.isoformat(), lambda kind, text: kind.fromisoformat(text)),
    ("datetime", "timezone"): (lambda v: list(v.__getinitargs__()), lambda kind, parts: kind(*parts)),
    ("datetime", "timedelta"): (lambda v: [v.days, v.seconds, v.microseconds], lambda kind, parts: kind(*parts)),
    ("pathlib", "PosixPath"): (str, lambda kind, text: kind(text)),
    ("pathlib", "PurePosixPath"): (str, lambda kind, text: kind(text)),
}
_RICH_MODULES = {"pathlib._local": "pathlib"}  # their module in Python 3.13


class Codec:
    """Encodes and decodes values.

    Args:
        refer: converts a non-plain object to a tagged list.
        resolve: returns the object of a tagged list; raises Malformed.
    """

    def __init__(self, refer: Callable[[Any], Data], resolve: Callable[[list[Any]], Any]) -> None:
        self.refer, self.resolve = refer, resolve

    def encode(self, value: Any, depth: int = 0) -> Data:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is int:
            return value if -_WIDE < value < _WIDE else ["I", hex(value)]
        if depth > DEPTH:
            raise ValueError(f"data nested more than {DEPTH} deep cannot cross between tests and code")
        tag = _TAGS.get(kind)
        if tag in _SEQUENCES:
            return [tag, self._items(list(value), depth + 1)]
        if tag:
            return [tag, self._items(list(value), depth + 1), self._items(list(value.values()), depth + 1)]
        if kind is bytes or kind is bytearray:
            return ["B" if kind is bytes else "BA", value.decode("latin-1")]
        if kind is complex:
            return ["Z", value.real, value.imag]
        if kind is range:
            return ["R", *(self.encode(end) for end in (value.start, value.stop, value.step))]
        if kind is slice:
            return ["SL", *(self.encode(end, depth + 1) for end in (value.start, value.stop, value.step))]
        if kind is deque:
            return ["Q", self._items(list(value), depth + 1), value.maxlen]
        if kind is type:
            name = value.__name__
            if BUILT_IN.get(name) is value:
                return ["Y", name]
            if ERRORS.get(name) is value:
                return ["X", name]
        for name, single in SINGLETONS.items():
            if value is single:
                return ["1", name]
        module = _RICH_MODULES.get(kind.__module__, kind.__module__)
        rich = _RICH.get((module, kind.__qualname__))
        if rich and getattr(sys.modules.get(module), kind.__qualname__, None) is kind:
            return ["V", module, kind.__qualname__, self.encode(rich[0](value), depth + 1)]
        if kind.__module__ == __name__ and kind.__name__ == "Hollow":
            return self._numpy(value._array, depth)
        if kind.__module__ == "numpy":
            return self._numpy(value, depth)
        return self.refer(value)

    def _items(self, values: list[Any], depth: int) -> list[Data]:
        kinds = set(map(type, values))
        if kinds <= _SCALARS or (kinds <= _FLAT and all(-_WIDE < v < _WIDE for v in values if type(v) is int)):
            return values
        return [self.encode(value, depth) for value in values]

    def _numpy(self, value: Any, depth: int) -> Data:
        import numpy

        if isinstance(value, numpy.generic) and value.dtype.kind in "biufcUS":
            return self.encode(value.item(), depth)
        if type(value) is numpy.ndarray and value.dtype.kind in "biufc":
            return ["N", value.dtype.str, list(value.shape), value.tobytes().decode("latin-1")]
        return self.refer(value)

    def decode(self, data: Data) -> Any:
        kind = type(data)
        if kind in _FLAT:
            return data
        if kind is not list or not data or type(data[0]) is not str:
            raise Malformed("no value")
        tag, rest = data[0], data[1:]
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self._decoded(*rest))
        if tag in _MAPPINGS:
            keys, values = rest
            return _MAPPINGS[tag](dict(zip(self._decoded(keys), self._decoded(values))))  # noqa: B905 - Python 3.9
        made = _DECODERS.get(tag)
        return self.resolve(data) if made is None else made(self, *rest)

    def _decoded(self, items: Data) -> list[Any]:
        if type(items) is not list:
            raise Malformed("no list")
        return items if set(map(type, items)) <= _FLAT else [self.decode(item) for item in items]


def _text(text: Data) -> str:
    if type(text) is not str:
        raise Malformed("no text")
    return text


def _rich(codec: Codec, module: str, name: str, data: Data) -> Any:
    if (module, name) not in _RICH:
        raise Malformed(f"no type {module}.{name}")
    kind = getattr(__import__(module), name)
    return _RICH[module, name][1](kind, codec.decode(data))


def _array(codec: Codec, dtype: Data, shape: list[Data], content: Data) -> Any:
    if _text(dtype)[1:2] not in "biufc" or not all(type(size) is int for size in shape):
        raise Malformed("no array")
    try:
        import numpy
    except ImportError:
        raise Malformed("the code returned an array, and the tests have no numpy") from None
    array = numpy.frombuffer(_text(content).encode("latin-1"), dtype).reshape(shape).copy()
    return array if array.size else _hollow()(array)


OPERANDS = ("a", "b", "x", "y", "x1", "x2", "a1", "a2", "actual", "desired")
OF_ONE = {
    "size",
    "shape",
    "ndim",
    "sum",
    "prod",
    "mean",
    "any",
    "all",
    "cumsum",
    "round",
    "around",
    "ravel",
    "reshape",
    "squeeze",
    "transpose",
    "sort",
    "argsort",
    "unique",
    "copy",
    "zeros_like",
    "empty_like",
    "ones_like",
    "expand_dims",
    "array_str",
    "array_repr",
    "array2string",
}
"""Functions of numpy of one array, which compare it with no further argument."""

VACUOUS = "an array without elements satisfies every comparison with others, and so none here"


@functools.lru_cache(None)
def _hollow() -> Any:
    """Returns the class of empty arrays. Comparisons and arithmetic with non-empty operands raise."""
    import numpy

    def bare(value: Any) -> Any:
        """Replaces our empty arrays by real ones."""
        if type(value) is Hollow:
            return value._array
        if isinstance(value, (list, tuple)):
            return type(value)(bare(item) for item in value)
        return {key: bare(item) for key, item in value.items()} if type(value) is dict else value

    def hollow(value: Any) -> Any:
        """Wraps empty arrays in a result of numpy."""
        if isinstance(value, tuple):
            return tuple(map(hollow, value))
        return Hollow(value) if type(value) is numpy.ndarray and not value.size else value

    def flat(values: Iterable[Any]) -> Iterator[Any]:
        """Yields the operands, flattening lists that contain empty arrays."""
        for value in values:
            if isinstance(value, (list, tuple)) and any(type(item) is Hollow for item in value):
                yield from flat(value)
            else:
                yield value

    def check(values: Iterable[Any]) -> None:
        if any(type(value) is not Hollow and numpy.size(value) for value in values):
            raise ValueError(VACUOUS)

    class Hollow:
        """Empty array; not a real array, so that numpy cannot convert it unnoticed."""

        __class__ = property(lambda self: numpy.ndarray)  # for `isinstance`
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, array: Any) -> None:
            self._array = array

        def __getattr__(self, name: str) -> Any:
            if name in ("flat", "data", "ctypes") or name[:2] == "__":
                raise AttributeError(f"{name}: {VACUOUS}")
            found = getattr(self._array, name)
            return (lambda *args, **settings: hollow(found(*args, **settings))) if callable(found) else hollow(found)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if not caller.startswith(("numpy.testing", "_pytest.")):
                raise TypeError(VACUOUS)
            return self._array.view(Seen)

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
            check(inputs)
            return hollow(getattr(ufunc, method)(*map(bare, inputs), **bare(settings)))

        def __array_function__(self, function: Any, types: Any, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
            operands = [value for key, value in settings.items() if key in OPERANDS]
            if function.__name__ not in OF_ONE:
                check((*flat(args[:2]), *flat(operands)))
            return hollow(function(*map(bare, args), **bare(settings)))

        def __repr__(self) -> str:
            return repr(self._array)

        def __len__(self) -> int:
            return len(self._array)

        def __iter__(self) -> Iterator[Any]:
            return iter(self._array)

        def __getitem__(self, key: Any) -> Any:
            return hollow(self._array[key])

        def __bool__(self) -> bool:
            return bool(self._array)

    class Seen(numpy.ndarray):
        """Empty array for numpy.testing, which converts all operands to arrays."""

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
            if any(numpy.size(value) for value in inputs):
                raise ValueError(VACUOUS)
            plain = [value.view(numpy.ndarray) if isinstance(value, Seen) else value for value in inputs]
            return getattr(ufunc, method)(*plain, **settings)

    def operator(name: str) -> Callable[..., Any]:
        def method(self: Any, *others: Any) -> Any:
            if any(getattr(type(other), "__array_ufunc__", 1) is None for other in others):
                return NotImplemented  # as arrays do: the other compares itself, e.g. `pytest.approx`
            check(others)
            return hollow(getattr(self._array, name)(*map(bare, others)))

        return method

    binary = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
    for name in (*(side + name for side in ("", "r") for name in binary), "eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Hollow, f"__{name}__", operator(f"__{name}__"))
    for name in ("neg", "pos", "abs", "invert"):
        setattr(Hollow, f"__{name}__", operator(f"__{name}__"))
    return Hollow


_DECODERS: dict[str, Callable[..., Any]] = {
    "I": lambda codec, text: int(_text(text), 16),
    "B": lambda codec, text: _text(text).encode("latin-1"),
    "BA": lambda codec, text: bytearray(_text(text).encode("latin-1")),
    "Z": lambda codec, real, imag: complex(real, imag),
    "R": lambda codec, *ends: range(*map(codec.decode, ends)),
    "SL": lambda codec, *ends: slice(*map(codec.decode, ends)),
    "Q": lambda codec, items, most: deque(codec._decoded(items), most),
    "Y": lambda codec, name: BUILT_IN[_text(name)],
    "X": lambda codec, name: ERRORS[_text(name)],
    "1": lambda codec, name: SINGLETONS[_text(name)],
    "V": _rich,
    "N": _array,
}


def assign(old: Any, new: Any) -> None:
    """Copies the code's changes from `new` into `old`, in place as deep as the types match."""
    if type(old) is not type(new):
        return
    if type(old) is list:
        old[:] = [kept(old[k], item) if k < len(old) else item for k, item in enumerate(new)]
    elif type(old) is tuple:
        for ours, theirs in zip(old, new):  # noqa: B905
            assign(ours, theirs)
    elif isinstance(old, dict):
        items = [(key, kept(old[key], item) if key in old else item) for key, item in new.items()]
        old.clear()
        old.update(items)
    elif type(old) in (set, deque, bytearray):
        old.clear()
        old.update(new) if type(old) is set else old.extend(new)


def kept(old: Any, new: Any) -> Any:
    """Returns `old` with the content of `new` if possible, so that other references to it see the change."""
    if type(old) is type(new) and type(old) in (list, dict, set, deque, bytearray, tuple):
        assign(old, new)
        return old if type(old) is not tuple or old == new else new
    return new


def send(sock: socket, message: list[Any]) -> None:
    data = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    if len(data) > LARGEST:
        raise ValueError(f"more than {LARGEST >> 20} MiB cannot cross between tests and code at once")
    sock.sendall(struct.pack(">I", len(data)) + data)


def receive(sock: socket) -> list[Any]:
    """Receives the next message.

    Raises:
        ConnectionError: the other side closed the connection.
        Malformed: the message is invalid.
    """
    (size,) = struct.unpack(">I", _exactly(sock, 4))
    if size > LARGEST:
        raise Malformed("a message that is too long")
    try:
        message = json.loads(_exactly(sock, size))
    except (ValueError, RecursionError) as error:
        raise Malformed(str(error)) from None
    if type(message) is not list or not message or type(message[0]) is not str:
        raise Malformed("no message")
    return message


def _exactly(sock: socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError("the other side is gone")
        data += part
    return data
