"""Names shared by both sides."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def _special(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"__{name}__" for name in names)


UNARY = _special((
    "bool", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil", "abs", "neg", "pos", "invert", "len",
))  # fmt: skip
_ARITHMETIC = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "lshift", "rshift", "and", "or",
    "xor",
)  # fmt: skip
BINARY = _special(side + name for name in _ARITHMETIC for side in ("", "r", "i"))
OTHER = _special((
    "call", "next", "contains", "iter", "getitem", "setitem", "delitem", "missing", "enter", "exit", "aiter", "anext",
    "aenter", "aexit", "reversed", "length_hint", "bytes", "fspath", "lt", "le", "gt", "ge",
))  # fmt: skip
SPECIAL_METHODS = frozenset((*UNARY, *BINARY, *OTHER))
"""Special methods of objects available to tests; a class is sent with the list of its own."""

ERROR_MODULES = frozenset((
    "json.decoder", "decimal", "subprocess", "queue", "_queue", "struct", "binascii", "csv", "_csv", "re", "statistics",
    "dataclasses", "zlib", "sqlite3", "uuid", "zoneinfo", "configparser", "shutil", "socket", "urllib.error", "string",
))  # fmt: skip
"""Standard library modules whose exceptions are recreated in the tests; none has a meaning to test runners."""
