"""seccomp filter that lets only the toolbox change the mark of its processes, see `tools/toolbox/processes.py`.

The mark is the limit on file locks (RLIMIT_LOCKS), which Linux does not enforce. Programs may read it. Setting it takes
a secret in the last register, which the call does not use. The secret has 64 bits, so that no 32-bit program can pass
it.

Our own instructions: libseccomp is not always installed, and some versions never end over two rules for one call.
"""

from __future__ import annotations

import errno
import platform

BLANK = b"a secret"
"""Placeholder of two words, which each toolbox replaces by its secret."""

ALLOW = 0x7FFF0000
REFUSE = 0x00050000 | errno.EPERM
_RLIMIT_LOCKS = 10
_LOAD, _AND, _SAME, _RETURN = 0x20, 0x54, 0x15, 0x06
_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data
_NOT_X32 = ~0x40000000 & 0xFFFFFFFF
_CALLS = {  # little-endian ones; architecture, setrlimit, prlimit64: of the machine, and of its 32-bit relative
    "x86_64": ((0xC000003E, 160, 302), (0x40000003, 75, 340)),
    "aarch64": ((0xC00000B7, 164, 261), (0x40000028, 75, 369)),
}

_Row = tuple[int, int, str, str]
"""Instruction, operand, and jump targets if it holds or not: a label, else the next row."""


def mark_filter() -> bytes:
    """Returns the filter, as instructions that fall through at their end; empty for unknown machines."""
    calls = _CALLS.get(platform.machine())
    return _assembled(_program(*calls)) if calls else b""


def returns(action: int) -> bytes:
    """Returns the instruction that ends a filter."""
    return _instruction(_RETURN, action, 0, 0)


def _program(own: tuple[int, int, int], narrow: tuple[int, int, int]) -> dict[str, list[_Row]]:
    """Returns rows by label."""
    low, high = (int.from_bytes(part, "little") for part in (BLANK[:4], BLANK[4:]))
    return {
        "start": [(_LOAD, _ARCH, "", ""), (_SAME, own[0], "own", "narrow")],
        "narrow": [(_LOAD, _NUMBER, "", ""), (_SAME, narrow[1], "set", ""), (_SAME, narrow[2], "read or set", "end")],
        "own": [(_LOAD, _NUMBER, "", ""), (_AND, _NOT_X32, "", "")],
        "own call": [(_SAME, own[1], "set", ""), (_SAME, own[2], "read or set", "end")],
        "set": [(_LOAD, _argument(0), "", ""), (_SAME, _RLIMIT_LOCKS, "refuse", "end")],
        "read or set": [(_LOAD, _argument(1), "", ""), (_SAME, _RLIMIT_LOCKS, "", "end")],
        "new one?": [(_LOAD, _argument(2), "", ""), (_SAME, 0, "", "secret")],
        "really none?": [(_LOAD, _argument(2) + 4, "", ""), (_SAME, 0, "end", "secret")],
        "secret": [(_LOAD, _argument(5), "", ""), (_SAME, low, "", "refuse")],
        "second word": [(_LOAD, _argument(5) + 4, "", ""), (_SAME, high, "end", "refuse")],
        "refuse": [(_RETURN, REFUSE, "", "")],
        "end": [],
    }


def _argument(number: int) -> int:
    return 16 + 8 * number


def _assembled(program: dict[str, list[_Row]]) -> bytes:
    rows = [row for block in program.values() for row in block]
    labels, at = {}, 0
    for label, block in program.items():
        labels[label] = at
        at += len(block)
    ways = ((labels.get(to, here) - here for to in (yes, no)) for here, (_, _, yes, no) in enumerate(rows, start=1))
    return b"".join(_instruction(code, operand, *way) for (code, operand, *_), way in zip(rows, ways, strict=True))


def _instruction(code: int, operand: int, yes: int, no: int) -> bytes:
    """Encodes a `struct sock_filter`."""
    return code.to_bytes(2, "little") + bytes((yes, no)) + operand.to_bytes(4, "little")
