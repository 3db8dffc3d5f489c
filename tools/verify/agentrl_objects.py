"""Proxies in the tests for objects, classes, exceptions and modules of the code.

Each forwards operations over the connection `code()`. The kinds of special methods below define which test data an
operator reveals to the code.
"""

from __future__ import annotations

import operator
import os
import sys
import types
from collections import deque

from agentrl_names import BINARY, OTHER, UNARY
from agentrl_plain import Malformed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from agentrl_stub import Code

    Method = Callable[..., Any]

LOST = 70
REFUSED = (
    "operators between an object of the code and plain data are not sent to the code, which could answer what the test "
    "wants to hear: compare attributes or results of methods, or set trust_operators"
)
DUNDERS = {"__name__", "__qualname__", "__wrapped__", "__annotations__", "__version__", "__defaults__"}
"""Dunder names looked up in the code; all others are left to Python."""

RUNNERS = {
    "load_tests", "setUpModule", "tearDownModule", "setup_module", "teardown_module", "setup_function", "pytestmark",
    "teardown_function", "pytest_plugins", "collect_ignore", "collect_ignore_glob", "pytest", "unittest",
}  # fmt: skip
"""Names with a meaning to test runners; the code cannot define them."""

_CODE: list[Code] = []


def connect(connection: Code) -> None:
    """Sets the connection returned by `code()`."""
    _CODE.append(connection)


def code() -> Code:
    return _CODE[0]


def ours(value: object) -> bool:
    """Returns True if a value is a proxy of the code's process."""
    return isinstance(value, (Remote, RemoteError, RemoteMeta, BoundMethod, Module))


def lost(why: object) -> NoReturn:
    """Fails the tests: the code's process died or sent invalid data."""
    os.write(2, f"the code under test is gone: {why}\n".encode("utf-8", "replace"))
    os._exit(LOST)


class BoundMethod:
    """Method of an object of the code."""

    def __init__(self, target: list[Any], name: str) -> None:
        if type(target) is not list or type(name) is not str:
            raise Malformed("no method")
        self._agentrl_target, self.__name__ = target, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        ends = self.__name__ in ("send", "throw", "__next__")
        return code().call(reference(self), args, kwargs, ends)

    def __getattr__(self, name: str) -> Any:
        return forwarded(self, name)

    def __eq__(self, other: object) -> bool:
        return type(other) is BoundMethod and reference(self) == reference(other)

    def __hash__(self) -> int:
        return hash(self.__name__)


def reference(value: Any) -> list[Any]:
    if type(value) is BoundMethod:
        return ["M", value._agentrl_target, value.__name__]
    if type(value) is RemoteMeta:
        return ["K", type.__getattribute__(value, "_agentrl_class")]
    if isinstance(value, Module):
        return ["O", value.__dict__["_agentrl_number"]]
    return ["H", object.__getattribute__(value, "_agentrl_number")]


def forwarded(value: Any, name: str) -> Any:
    """Returns an attribute from the code."""
    if name in RUNNERS or name.startswith(("_pytest", "_agentrl")) or (name[:2] == "__" and name not in DUNDERS):
        raise AttributeError(name)
    return code().request("get", reference(value), name)


def array_of(handle: Any, dtype: Any = None, copy: Any = None) -> Any:
    """Makes an array of an object's items. Raises if empty: empty arrays satisfy every comparison of arrays."""
    import numpy

    items = [handle[place] for place in range(len(handle))]
    if not items:
        raise TypeError("an object of the code without items does not become an array: compare its attributes")
    return numpy.array(items, dtype)


class RemoteMeta(type):
    """Metaclass of the code's classes."""

    @classmethod
    def make(meta, name: str, bases: tuple[type, ...], about: dict[str, Any]) -> RemoteMeta:
        had = set(about).union(*(vars(kind) for base in bases for kind in base.__mro__))
        if {"__len__", "__getitem__"} <= had:  # else numpy reads the items and makes an empty array without any
            about["__array__"] = array_of
        return type.__new__(meta, name, bases, about)

    def __new__(meta, name: str, bases: tuple[type, ...], about: dict[str, Any]) -> RemoteMeta:
        if bases and all(type(base) is not RemoteMeta or "_agentrl_class" not in vars(base) for base in bases):
            return type.__new__(meta, name, bases, about)
        raise TypeError("a class of the code under test lives in another process: a test cannot derive from it")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return code().call(reference(cls), args, kwargs)

    def __getattr__(cls, name: str) -> Any:
        return forwarded(cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name[:2] == "__":
            return type.__setattr__(cls, name, value)
        code().request("set", reference(cls), name, code().codec.encode(value))

    def __delattr__(cls, name: str) -> None:
        code().request("del", reference(cls), name)

    def __getitem__(cls, key: Any) -> Any:
        return code().special(reference(cls), "__getitem__", key)

    def __iter__(cls) -> Any:
        return code().special(reference(cls), "__iter__")

    def __len__(cls) -> Any:
        return code().special(reference(cls), "__len__")

    def __contains__(cls, item: Any) -> bool:
        return any(item is own or item == own for own in cls)

    def __bool__(cls) -> bool:
        return True


def made(kind: Any, number: int) -> Any:
    handle: Any = object.__new__(kind)
    for name, value in (("number", number), ("tainted", False), ("ahead", deque()), ("run", 0), ("end", None)):
        object.__setattr__(handle, "_agentrl_" + name, value)
    return handle


def own(handle: Any, name: str) -> Any:
    return object.__getattribute__(handle, "_agentrl_" + name)


class _Forward:
    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return forwarded(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name[:2] == "__":
            return object.__setattr__(self, name, value)
        code().request("set", reference(self), name, code().codec.encode(value))

    def __delattr__(self, name: str) -> None:
        code().request("del", reference(self), name)

    def __dir__(self) -> Any:
        return code().request("names", reference(self))


class Remote(_Forward, metaclass=RemoteMeta):
    """Object of the code."""

    _agentrl_own = frozenset[str]()  # special methods of plain data that its class overrides

    _agentrl_plain = None  # plain base type of its class

    __slots__ = ("__weakref__", "_agentrl_ahead", "_agentrl_end", "_agentrl_number", "_agentrl_run", "_agentrl_tainted")

    def __eq__(self, other: object) -> Any:
        if ours(other) or code().trust:
            return code().special(reference(self), "__eq__", other)
        plain = plain_of(self)
        if plain:
            return plain[0] == other
        answer = type(other).__eq__(other, self)  # not NotImplemented, which is true if a test calls this directly
        return False if answer is NotImplemented else answer

    def __hash__(self) -> Any:
        return code().special(reference(self), "__hash__")

    def __repr__(self) -> str:
        return str(code().special(reference(self), "__repr__"))

    def __str__(self) -> str:
        return str(code().special(reference(self), "__str__"))

    def __format__(self, form: str) -> str:
        if form and own(self, "tainted"):  # format specs are for numbers
            raise TypeError(REFUSED)
        return str(code().special(reference(self), "__format__", form))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("an object of the code under test cannot be copied or pickled in a test")


class RemoteError(_Forward, metaclass=RemoteMeta):
    """Exception of a class of the code."""

    def __str__(self) -> str:
        text: str = vars(self).get("_agentrl_text", "")
        return text

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("args", "with_traceback", "add_note"):
            return BaseException.__setattr__(self, name, value)
        _Forward.__setattr__(self, name, value)


class Exit(SystemExit):
    """SystemExit from the code. If it ends a test process, the exit code is a failure, regardless of its value."""

    @property
    def code(self) -> Any:  # type: ignore[override]
        try:
            sys._getframe(1)
        except ValueError:  # called by Python itself at exit
            return LOST
        return self.args[0] if len(self.args) == 1 else self.args or None


def plain_of(handle: Any) -> list[Any]:
    """Returns in a list the plain data of an object of a subclass of int, str, list, ...; empty for others.

    Also empty for results of operators that revealed test data, because the code could choose them accordingly.
    """
    if own(handle, "tainted"):
        return []
    plain, kind = code().request("plain", reference(handle)), type(handle)._agentrl_plain
    if type(plain) is not list or [type(value) for value in plain] not in ([], [kind]):
        lost("an object is not the data that its class holds")
    return plain


# Special methods, by the test data that they may reveal to the code.

_ORDER = {"__lt__": operator.lt, "__le__": operator.le, "__gt__": operator.gt, "__ge__": operator.ge}


def _any(name: str) -> Method:
    """Makes a method that is forwarded with its arguments: indexing, entering, iterating are like calls."""

    def method(self: Any, *args: Any) -> Any:
        return code().special(reference(self), name, *args)

    return method


def _unary(name: str) -> Method:
    """Makes a method that is forwarded, unless the object is the result of an operator that revealed test data."""

    def method(self: Any, *args: Any) -> Any:
        if own(self, "tainted"):
            raise TypeError(REFUSED)
        return code().special(reference(self), name, *args)

    return method


def _binary(name: str) -> Method:
    """Makes a binary operator: forwarded for objects of the code; for plain data only if the result is an object again
    (vector * 3).

    An object that derives from plain data acts as plain data, unless its class overrides the operator (a vector of
    namedtuples).
    """

    def method(self: Any, other: Any, *rest: Any) -> Any:
        plain = [] if ours(other) or code().trust or name in type(self)._agentrl_own else plain_of(self)
        if plain:
            return getattr(type(plain[0]), name, lambda *_: NotImplemented)(plain[0], other, *rest)
        result = code().special(reference(self), name, other, *rest)
        if code().trust or result is NotImplemented:
            return result
        starts_sum = name == "__radd__" and type(other) is int and other == 0
        told = not (ours(other) or starts_sum) or (isinstance(other, Remote) and own(other, "tainted"))
        if told or own(self, "tainted"):
            if not isinstance(result, Remote):
                raise TypeError(REFUSED)
            object.__setattr__(result, "_agentrl_tainted", True)  # it may depend on test data
        return result

    return method


def _order(name: str, compare: Callable[[Any, Any], Any]) -> Method:
    """Makes a comparison: forwarded for objects of the code; for plain data compared here, if the object holds it."""

    def method(self: Any, other: Any) -> Any:
        if ours(other) or code().trust:
            return code().special(reference(self), name, other)
        plain = plain_of(self)
        if not plain:
            raise TypeError(REFUSED)
        return compare(plain[0], other)

    return method


def _contains(self: Any, item: Any) -> Any:
    """Searches plain data here, among the items of the object's iterator."""
    if ours(item) or code().trust:
        return code().special(reference(self), "__contains__", item)
    plain = plain_of(self)
    if plain:
        return item in plain[0]
    if not hasattr(type(self), "__iter__"):
        raise TypeError(REFUSED)
    return any(item is one or item == one for one in self)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    return code().call(reference(self), args, kwargs)


def _next(self: Any) -> Any:
    """Returns the next item; prefetches ever more items of long iterations."""
    ahead, end = own(self, "ahead"), own(self, "end")
    if not ahead and end is None:
        run = own(self, "run") + 1
        most = 1 if run < 16 else min(2 ** (run - 15), 256)
        items, how, value = code().request("next", reference(self), most, ends=True)
        object.__setattr__(self, "_agentrl_run", run)
        ahead.extend(items)
        if how == "end":
            end = StopIteration() if value is None else StopIteration(value)
        elif how == "raise":
            end = value
        object.__setattr__(self, "_agentrl_end", end)
    if ahead:
        return ahead.popleft()
    if not isinstance(end, StopIteration):  # an error is raised once; the next call asks the code again
        object.__setattr__(self, "_agentrl_end", None)
    raise end


SPECIAL = {"__call__": _call, "__next__": _next, "__contains__": _contains}
SPECIAL.update((name, _order(name, compare)) for name, compare in _ORDER.items())
for _names, _kind in ((UNARY, _unary), (BINARY, _binary), (OTHER, _any)):
    SPECIAL.update((name, _kind(name)) for name in _names if name not in SPECIAL)


class Module(types.ModuleType):
    """Module of the code."""

    @property
    def __all__(self) -> list[str]:
        """Names for `import *`: none defined by the importing module, except by an earlier `import *` of the code."""
        names, frame = self.__dict__.get("_agentrl_public", ()), sys._getframe(1)
        if frame.f_locals is not frame.f_globals:  # not called by an import
            return list(names)
        known, given = frame.f_globals, code().given.setdefault(id(frame.f_globals), set())
        taken = [name for name in names if name not in known or name in given]
        given.update(taken)
        return taken

    def __getattr__(self, name: str) -> Any:
        return forwarded(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name[:2] == "__" or (isinstance(value, types.ModuleType) and not isinstance(value, Module)):
            return types.ModuleType.__setattr__(self, name, value)
        if isinstance(value, Module) and value.__name__ == self.__name__ + "." + name:  # import of a submodule
            return types.ModuleType.__setattr__(self, name, value)
        code().request("set", reference(self), name, code().codec.encode(value))

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            return types.ModuleType.__delattr__(self, name)
        code().request("del", reference(self), name)

    def __dir__(self) -> list[str]:
        return [*self.__dict__, *code().request("names", reference(self))]
