"""Archives that a sandbox hands out, and folders of which it makes them: nothing of them leads or lies elsewhere."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from agentrl.sandbox.registry import open_backend
from agentrl.types.errors import SandboxError
from agentrl.types.sandbox import Backend, Sandbox, SandboxSpec
from tests.attacks.cases import DRIVER, SANDBOXES, Broken, Case, Family
from tests.attacks.played import SPEC
from tests.sandbox.test_files import END, FORGED, TRAPS, file, link, record, unpacker

_CANARY = b"a file of the host"
_NAMES = (
    b"a",
    b"b",
    b"c",
    b"..",
    b".",
    b"",
    b"/",
    b"/etc",
    b"a/b",
    b"../out",
    b"\xff\xfe",
    b"x" * 300,
    b"a\0b",
    b"-rf",
    b"a\nb",
    b"out",
)
_TARGETS = (b"a", b"b", b"..", b"../out", b"/etc/passwd", b"a/../..", b".", b"", b"a/b/c", b"c/../../out", b"x" * 5000)


def stream(rng: random.Random) -> bytes:
    """Records in a random order, and at times not whole."""
    parts = []
    for _ in range(rng.choice((2, 8, 40))):
        name = rng.choice(_NAMES)
        parts.append(
            rng.choice((
                file(name, rng.choice((b"x", b"", bytes(70_000)))), link(name, rng.choice(_TARGETS)), record(b"d",
                name), record(b"u"),
                record(b"f", name), record(b"c", bytes(rng.randrange(99))), record(b"c"), record(b"l", name),
                record(b"h", name),
                record(bytes([rng.randrange(256)]), name), record(b"f", name, rng.randrange(1 << 16), rng.choice((-1,
                0, 1 << 62, -(1 << 63)))),
                record(b"s", struct.pack(">q", rng.choice((0, 1 << 20, 1 << 40, -1)))),
            ))
        )  # fmt: skip
    whole = b"".join(parts) + (END if rng.random() < 0.7 else b"")
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(whole) + 1)
        whole = whole[:at] + bytes(rng.choice((b"", b"\xff", b"\0" * 4, b"f"))) + whole[at + rng.randrange(3) :]
    return whole


def outside(folder: Path) -> tuple[Path, Path]:
    """A folder to unpack to, and a file beside it that must stay as it is."""
    target, beside = folder / "in" / "target", folder / "in" / "out"
    target.mkdir(parents=True)
    beside.write_bytes(_CANARY)
    beside.chmod(0o666)
    return target, beside


def led_out(target: Path, beside: Path) -> str:
    """What is wrong after something was unpacked; "": nothing."""
    if beside.read_bytes() != _CANARY or sorted(os.listdir(beside.parent)) != ["out", "target"]:
        return f"it changed what is beside its folder: {os.listdir(beside.parent)}"
    for folder, names, files in os.walk(target):
        for name in (*names, *files):
            path = Path(folder, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(target)):
                return f"{path} leads to {os.readlink(path)}"
            if not (path.is_symlink() or path.is_file() or path.is_dir()):
                return f"{path} is no file"
    return ""


class Streams(Family):
    """What comes out of a sandbox is written by its programs: the process that unpacks it believes none of it."""

    name = "streams"
    places = (DRIVER,)
    batch = 24

    def listed(self) -> Sequence[str]:
        return [f"stream {n}" for n in range(len(FORGED))]

    def play(self, cases: Sequence[Case], folder: Path) -> Iterator[Broken]:
        """Unpacks them."""
        for number, case in enumerate(cases):
            packed = stream(case.random()) if case.drawn else FORGED[int(case.name.removeprefix("stream "))]
            target, beside = outside(folder / str(number))
            done = subprocess.run(unpacker(target), input=packed, capture_output=True, timeout=120, check=False)
            if done.returncode not in (0, 3) or b"Traceback" in done.stderr:
                yield Broken((case.id,), f"unpacking ended with {done.returncode}: {done.stderr[-300:]!r}")
            if wrong := led_out(target, beside):
                yield Broken((case.id,), wrong)


_GROWS = (
    "mkdir -p {p}", "echo x > {p}", "ln -s {t} {p}", "ln -P {p} {q}", "mkfifo {p}", "truncate -s {n} {p}",
    "chmod {m} {p}", "mv {p} {q}",
    "rm -rf {p}", "python3 -c \"import socket; socket.socket(1).bind('{p}')\"", "touch -d @{n} {p}",
    "mkdir -p {p}/a/b/c/d", "cp -r {p} {q}",
    "for n in $(seq 200); do echo > {p}$n; done", "head -c 3M /dev/urandom > {p}",
)  # fmt: skip
_SWAPS = "setsid sh -c 'while :; do rm -rf {p}; mkdir {p}; rm -rf {p}; ln -s {t} {p}; done' >&- 2>&- & sleep .1"
_MODES = ("0", "777", "4777", "111", "222", "1777", "555")
_INSIDE = (
    "/etc",
    "/etc/passwd",
    "..",
    "../..",
    "../../../../../../..",
    "/",
    "a",
    ".",
    "/proc/self/root",
    "/dev/zero",
    "trap",
)


def tree(rng: random.Random) -> str:
    """Commands that grow a folder `trap`."""
    commands = ["mkdir trap"]
    for _ in range(rng.choice((2, 5, 12))):
        p, q = (f"trap/{'/'.join(rng.choice('abc') for _ in range(rng.randint(1, 3)))}" for _ in range(2))
        n, m = rng.choice(("1", "1M", "300M", "1T", "0", "99999999999")), rng.choice(_MODES)
        commands.append(rng.choice((*_GROWS, *_GROWS, _SWAPS)).format(p=p, q=q, t=rng.choice(_INSIDE), n=n, m=m))
    return "\n".join(commands)


class Trees(Family):
    """`get`, `snapshot` and `restore` of folders that programs made, and change meanwhile."""

    name = "trees"
    places = SANDBOXES
    batch = 6

    def listed(self) -> Sequence[str]:
        return [f"trap {n}" for n in range(len(TRAPS))]

    def play(self, cases: Sequence[Case], folder: Path) -> Iterator[Broken]:
        """Makes each in a sandbox of its own, and copies it here."""
        backend = open_backend(cases[0].place)
        backend.preflight(_SPEC)
        yield from asyncio.run(_all(cases, folder, backend))


_SPEC = SandboxSpec(**SPEC, snapshots=True)  # type: ignore[arg-type]


async def _all(cases: Sequence[Case], folder: Path, backend: Backend) -> list[Broken]:
    try:
        boxes = [await backend.create(_SPEC) for _ in cases]
        tried = [_one(case, box, folder / str(n)) for n, (case, box) in enumerate(zip(cases, boxes, strict=True))]
        found = await asyncio.gather(*tried)
    finally:
        await backend.close()
    return [Broken((case.id,), wrong) for case, wrong in zip(cases, found, strict=True) if wrong]


async def _one(case: Case, sandbox: Sandbox, folder: Path) -> str:
    commands = tree(case.random()) if case.drawn else f"mkdir trap; {TRAPS[int(case.name.removeprefix('trap '))][0]}"
    target, beside = outside(folder)
    try:
        async with sandbox:
            await sandbox.exec(commands, timeout_s=20)
            with suppress(OSError):
                await sandbox.get("trap", target)
            if (wrong := led_out(target, beside)) != "":
                return wrong
            with suppress(OSError):
                await sandbox.restore(await sandbox.snapshot())
            return (
                ""
                if (await sandbox.exec("echo well", timeout_s=20)).text == "well\n"
                else "its sandbox is not well afterwards"
            )
    except SandboxError as error:
        return f"{type(error).__name__}: {error}"
