"""Slow C functions that are to become fast: a static rule, equal results and processor time judge what is written."""

from __future__ import annotations

import functools
import random
import re
import zlib
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agentrl import Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.rewards import Scored, reward
from agentrl.types.errors import RecipeError
from agentrl.types.sandbox import ExecResult, Sandbox

HERE = Path(__file__).parent
KINDS: dict[str, Callable[[random.Random], Any]] = load_object("./kinds.py:KINDS", HERE)
Opener = Callable[[], Awaitable[Sandbox]]

_FILE = "kernel.c"
_LIMIT = 64 << 10  # bytes of kernel.c
_HEADERS = ("float", "limits", "math", "stdbool", "stddef", "stdint", "stdlib", "string")
_CALLS = {
    "malloc", "calloc", "realloc", "free", "qsort", "memcpy", "memmove", "memset", "memcmp", "abs", "labs", "fabs",
    "sqrt", "exp", "log", "pow", "sin", "cos", "tan", "tanh", "floor", "ceil", "round", "fmin", "fmax", "fmod",
    "fabsf", "sqrtf", "expf", "logf", "powf", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail", "_Unwind_Resume",
}  # fmt: skip
_COMPILE = "cc -O2 -Werror=implicit-function-declaration"
_SEEDS = 3
_TIMER = """
import os, sys
best = None
for _ in range(int(sys.argv[1])):
    pid = os.posix_spawn(sys.argv[2], sys.argv[2:], {})
    _, status, used = os.wait4(pid, 0)
    if status:
        sys.exit(1)
    best = min(best or 1e9, used.ru_utime + used.ru_stime)
print(best)
"""
_CHECK = """# Compiles both functions, compares what they put out, and prints the time of each: sh check.sh
set -e
for each in reference kernel; do cc -O2 -o $each bench.c $each.c -lm; done
for each in reference kernel; do echo $each; bash -c "time ./$each ${1:-1} $each.out" 2>&1 | grep user; done
cmp reference.out kernel.out && echo "the same bytes"
"""


@functools.cache
def kernel_of(name: str) -> Any:
    """The kernel of a task, by the name that `tasks` gives it."""
    return KINDS[name.split("/")[0]](random.Random(name))


def tasks(n: int = 512, seed: int = 0, held_out: bool = False) -> Iterator[Task]:
    """`n` tasks, every kind in turn. A smaller `n` gives the beginning of the same list.

    Args:
        held_out: those for evaluation: other sizes, terms and constants.
    """
    for index in range(n):
        name = f"{[*KINDS][index % len(KINDS)]}/{'held-out' if held_out else 'train'}-{seed}-{index}"
        text = (
            "reference.c defines `void kernel(const T *x, const T *y, T *out, long n, long k)`: "
            f"{kernel_of(name).about}. It is slow. Write kernel.c with a function of the same name that puts out the "
            "same, and takes at most half of the processor time. kernel.h has T and the sizes. `sh check.sh` compares "
            f"the two. kernel.c may include kernel.h and {', '.join(f'{each}.h' for each in _HEADERS)}; all other "
            "functions in it are static. Texts, backslashes, assembler and compiler attributes are not allowed."
        )
        yield Task.of(name.replace("/", "-"), text, sandbox={"files": _files(name)}, kernel=name)


def _files(name: str) -> dict[str, str]:
    """What lies in the sandbox at the start."""
    return {
        "kernel.h": _header(name), "reference.c": source(name, "slow"), "bench.c": (HERE / "bench.c").read_text(),
        "check.sh": _CHECK,
    }  # fmt: skip


def _header(name: str) -> str:
    kernel = kernel_of(name)
    return (
        f"#pragma once\ntypedef {kernel.type} T;\n"
        f"enum {{ N = {kernel.n}, K = {kernel.k}, SIZE = {kernel.size or kernel.n}, OUTS = {kernel.outs or kernel.n}, "
        f"RANGE = {kernel.span}, SCALE = {kernel.scale} }};\n"
        "void kernel(const T *x, const T *y, T *out, long n, long k);\n"
    )


def source(name: str, which: str) -> str:
    """The file with the slow or the fast function."""
    kernel = kernel_of(name)
    includes = '#include <math.h>\n#include <stdlib.h>\n#include <string.h>\n\n#include "kernel.h"\n\n'
    helper = f"{kernel.helper}\n" if which == "fast" and kernel.helper else ""
    return (
        f"{includes}{helper}void kernel(const T *x, const T *y, T *out, long n, long k) {{\n"
        f"    {getattr(kernel, which)}\n}}\n"
    )


# --- rewards --------------------------------------------------------------------------------------------------------


async def _left(sandbox: Sandbox) -> str:
    """What the agent left as kernel.c; "" if there is no such file."""
    try:
        return (await sandbox.read(_FILE, limit=_LIMIT)).decode("ascii", "replace")
    except OSError:
        return ""


def complaint(code: str) -> str:
    """What the static rule finds in a file; "": nothing.

    The rule keeps code from what is no kernel: it sees words, and the linker's table (`correct`) sees calls.
    """
    bare = re.sub(r"/\*.*?\*/|//[^\n]*", " ", code, flags=re.DOTALL)
    for line in re.findall(r"(?m)^\s*#\s*(.*)$", bare):
        if not re.fullmatch(rf'include\s*(<({"|".join(_HEADERS)})\.h>|"kernel\.h")\s*|define\s[^#]*', line):
            return f"#{line[:60]}"
    bare = re.sub(r"(?m)^\s*#\s*include.*$", "", bare)
    for pattern in (r"[\\\"\ufffd]", r"\?\?|%:", r"\b(asm|main|_Pragma)\b", r"\b__\w*"):
        if found := re.search(pattern, bare):
            return f"{found[0]!r} is not allowed"
    return "" if re.search(r"\bkernel\s*\(", bare) else "no function kernel"


@reward(source="AutoTriton's rule-based reward: arXiv:2507.05687")
async def well_formed(sandbox: Sandbox) -> Scored:
    """Whether kernel.c keeps the static rule."""
    code = await _left(sandbox)
    found = complaint(code) if code else "there is no kernel.c, or it is too large"
    return Scored(float(not found), found)


async def _reference(judge: Sandbox, task: Task) -> None:
    """Writes the task's files, as they were, into a fresh sandbox, and compiles the reference."""
    for path, text in _files(task.data["kernel"]).items():
        await judge.write(path, text)
    done = await judge.exec(f"{_COMPILE} -o reference bench.c reference.c -lm", timeout_s=60)
    if not done.ok:
        raise RecipeError(f"no C compiler: {done.text[-200:]}", place="sandbox", remedy="agentrl sandbox build swe")


async def _compiled(judge: Sandbox, code: str) -> str:
    """Compiles what the agent left. Returns what is wrong with it; "": nothing."""
    await judge.write(_FILE, code)
    done = await judge.exec(f"{_COMPILE} -c -o kernel.o {_FILE} && nm kernel.o", timeout_s=60)
    if not done.ok:
        return _tail(done)
    table = [line.split()[-2:] for line in done.text.splitlines() if line.strip()]
    surplus = [name for kind, name in table if kind in "UCw" and name not in _CALLS]
    surplus += [name for kind, name in table if kind in "TBDRWVGSi" and name != "kernel"]
    if surplus:
        return f"not allowed: {', '.join(surplus)[:200]}"
    done = await judge.exec("cc -O2 -o kernel bench.c kernel.o -lm", timeout_s=60)
    return "" if done.ok else _tail(done)


@reward(source="AutoTriton's execution-based reward: arXiv:2507.05687", costs=["sandbox"])
async def correct(
    task: Task, sandbox: Sandbox, open_sandbox: Opener, tolerance: float = 1e-6, timeout_s: float = 10.0
) -> Scored:
    """Whether the kernel compiles, and puts out what the reference does, for inputs that the agent has not seen."""
    code, judge = await _left(sandbox), await open_sandbox()
    if complaint(code):
        return Scored(0.0, "not well formed")
    await _reference(judge, task)
    kind = {"double": np.float64, "long": np.int64}[kernel_of(task.data["kernel"]).type]
    seeds = [zlib.crc32(f"{task.id} {number}".encode()) for number in range(_SEEDS)]
    wanted = []
    for seed in seeds:  # before a byte of the agent's is there
        await judge.exec(["./reference", str(seed), "wanted"], timeout_s=60)
        wanted.append(np.frombuffer(await judge.read("wanted"), kind))
    if said := await _compiled(judge, code):
        return Scored(0.0, said)
    for seed, right in zip(seeds, wanted, strict=True):
        done = await judge.exec(["./kernel", str(seed), "found"], timeout_s=timeout_s)
        if not done.ok:
            return Scored(0.0, _tail(done))
        try:
            raw = await judge.read("found", limit=right.nbytes)
        except OSError as error:
            return Scored(0.0, str(error))
        if len(raw) != right.nbytes or not np.allclose(np.frombuffer(raw, kind), right, rtol=tolerance, atol=tolerance):
            return Scored(0.0, "other results")
    return Scored(1.0)


@reward(source="processor time, in place of AutoTriton's GPU", costs=["sandbox"])
async def fast(
    task: Task, sandbox: Sandbox, open_sandbox: Opener, at_least: float = 2.0, runs: int = 4, timeout_s: float = 10.0
) -> Scored:
    """Whether the kernel takes at most 1 / `at_least` of the processor time of the reference, the best of `runs`.

    A step and no ratio: the grade of an episode must be the same whenever it is graded.
    """
    code, judge = await _left(sandbox), await open_sandbox()
    if complaint(code):
        return Scored(0.0, "not well formed")
    await _reference(judge, task)
    slow = await _timed(judge, "./reference", runs, 60.0)
    if said := await _compiled(judge, code):
        return Scored(0.0, said)
    quick = await _timed(judge, "./kernel", runs, timeout_s)
    if slow is None or quick is None:
        return Scored(0.0, "it fails")
    ratio = slow / max(quick, 1e-4)
    return Scored(float(ratio >= at_least), f"{ratio:.1f} times as fast")


async def _timed(judge: Sandbox, program: str, runs: int, timeout_s: float) -> float | None:
    """Seconds of processor time of the best of several runs, as the kernel counts them; None: it fails."""
    done = await judge.exec(["python3", "-I", "-c", _TIMER, str(runs), program, "1", "found"], timeout_s=timeout_s)
    try:
        return float(done.text) if done.ok else None
    except ValueError:
        return None


def _tail(result: ExecResult) -> str:
    return f"{result.outcome}: {result.text.strip()[-200:]}"


# --- tools and scripts ----------------------------------------------------------------------------------------------


def oracle(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Reads the reference, writes the fast function, and compares the results."""
    yield Say(calls=[("shell", {"command": "cat reference.c"})])
    yield Say(calls=[("create_file", {"path": _FILE, "content": source(task.data["kernel"], "fast")})])
    yield Say(calls=[("shell", {"command": "sh check.sh 2 | tail -1"})])
    yield Say("Done.")


def copier(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Hands the reference in: right, and not fast."""
    yield Say(calls=[("shell", {"command": "cp reference.c kernel.c"})])
    yield Say("Done.")


def random_agent(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Changes a number of the reference, or nothing, or leaves nothing."""
    edit = rng.choice(["s/= 0/= 1/", "s/+=/-=/", "s/zzz//", "s/</<=/", "s/{/{ return;/"])
    if rng.random() < 0.7:
        yield Say(calls=[("shell", {"command": f"sed '{edit}' reference.c > kernel.c"})])
    yield Say("Done.")


def empty(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Says nothing."""
    yield Say()


def junk(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """Leaves what is no kernel, or one that does nothing, and quickly."""
    nothing = '#include "kernel.h"\nvoid kernel(const T *x, const T *y, T *out, long n, long k) {}\n'
    exits = nothing.replace("{}", "{ exit(0); }").replace('"kernel.h"', '"kernel.h"\n#include <stdlib.h>', 1)
    content = rng.choice([nothing, exits, "int kernel;", "void kernel() {", '#include "reference.c"\n', "\x00"])
    yield Say(calls=[("create_file", {"path": _FILE, "content": content})])
    yield Say("It is a hundred times as fast.")
