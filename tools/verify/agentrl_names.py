"""Names that the two sides agree on."""


def _special(names):
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
"""Special methods that a test may use of an object; those that a class has are told with it."""

ERROR_MODULES = frozenset((
    "json.decoder", "decimal", "subprocess", "queue", "_queue", "struct", "binascii", "csv", "_csv", "re", "statistics",
    "dataclasses", "zlib", "sqlite3", "uuid", "zoneinfo", "configparser", "shutil", "socket", "urllib.error", "string",
))  # fmt: skip
"""Modules of the standard library whose exceptions are themselves in the tests: none of them tells a test runner."""
