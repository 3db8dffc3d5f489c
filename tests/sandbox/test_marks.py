"""The mark by which a toolbox knows whose an orphan is: programs inherit it, may read it, and cannot set it."""

from __future__ import annotations

import platform

import pytest

from agentrl.sandbox.linux import seccomp
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.types.sandbox import SandboxSpec

pytestmark = pytest.mark.slow

_ATTEMPTS = """
import ctypes, mmap, resource, sys
libc = ctypes.CDLL(None, use_errno=True)
LOCKS, X32, UPPER = 10, 0x40000000, 1 << 32
setrlimit, prlimit = (164, 261) if sys.argv[1] == "aarch64" else (160, 302)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
def at(address):
    assert libc.mmap(address, 4096, 7, 0x100022, -1, 0) == address  # fixed, private, anonymous; can be run
    ctypes.memmove(address, bytes([9]) + bytes(7) + bytes([255] * 8), 16)
    return address
low, none_below = at(0x10000000), at(1 << 33)  # the lower half of the second looks like no address
def call(number, *arguments):
    libc.syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
blank, beyond = int.from_bytes(b"a secret", "little"), X32 if sys.argv[2] == "x32" else 0
for limit in (low, none_below):
    for last in (0, blank):
        for locks in (LOCKS, LOCKS + UPPER):
            call(setrlimit + beyond, locks, limit, 0, 0, 0, last)
            call(prlimit + beyond, 0, locks, limit, 0, 0, last)
if sys.argv[2] == "narrow":  # as a 32-bit program calls: int 0x80
    ctypes.memmove(low + 32, bytes([9]) + bytes(3) + bytes([255] * 4), 8)
    for eax, ebx, ecx, edx in ((75, LOCKS, low + 32, 0), (340, 0, LOCKS, low)):
        words = b"".join(op + word.to_bytes(4, "little") for op, word in
                         ((b"\\xb8", eax), (b"\\xbb", ebx), (b"\\xb9", ecx), (b"\\xba", edx), (b"\\xbe", 0)))
        code = b"\\x53" + words + b"\\xcd\\x80\\x5b\\xc3"
        ctypes.memmove(low + 64, code, len(code))
        ctypes.CFUNCTYPE(ctypes.c_long)(low + 64)()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
old = (ctypes.c_uint64 * 2)()
assert libc.prlimit(0, LOCKS, None, old) == 0, "it cannot be read"
print(old[0])
"""
_MARKED = "awk '/^Max file locks/ {print $4}' /proc/self/limits"


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="the filter exists for x86-64 and ARM64 only"
)
@pytest.mark.parametrize("library", [True, False], ids=["libseccomp", "no libseccomp"])
@pytest.mark.parametrize("kind", ["wide", "x32", "narrow"])
async def test_a_program_cannot_set_its_mark(kind: str, library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind != "wide" and platform.machine() != "x86_64":
        pytest.skip("x32 and int 0x80 calls exist on x86 only")
    if not library:
        monkeypatch.setattr(seccomp, "filter_program", lambda: None)
    backend = NamespaceBackend()
    sandbox = await backend.create(SandboxSpec())
    before = int((await sandbox.exec(_MARKED)).text)
    result = await sandbox.exec(["python3", "-c", _ATTEMPTS, platform.machine(), kind])
    after = int((await sandbox.exec(_MARKED)).text)
    await backend.close()
    assert after == before + 2  # one for each program
    if (kind, result.code) == ("narrow", 139):
        pytest.skip("this kernel is built without 32-bit calls")
    assert result.text == f"{before + 1}\n"
