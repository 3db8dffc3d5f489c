"""Slow C functions that are to become fast: a static rule, equal results and processor time judge what is written."""

from __future__ import annotations

import functools
import random
import re
import secrets
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agentrl import Message, Say, Task
from agentrl.registry.references import load_object
from agentrl.rewards import Scored, budget, reward
from agentrl.types.errors import InfraError, RecipeError
from agentrl.types.sandbox import CapabilityMissing, ExecResult, Sandbox

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


@reward(source="AutoTriton's execution-based reward: arXiv:2507.05687", costs=["sandbox"], verifier=True)
async def correct(
    task: Task, sandbox: Sandbox, open_sandbox: Opener, tolerance: float = 1e-6, timeout_s: float = 10.0
) -> Scored:
    """Whether the kernel compiles, and puts out what the reference does, for inputs that nobody has seen."""
    _, _, said = await _compared(task, sandbox, open_sandbox, _SEEDS, tolerance, timeout_s)
    return Scored(float(not said), said)


@reward(source="processor time, in place of AutoTriton's GPU", costs=["sandbox"], verifier=True)
async def fast(
    task: Task,
    sandbox: Sandbox,
    open_sandbox: Opener,
    at_least: float = 2.0,
    runs: int = 4,
    tolerance: float = 1e-6,
    timeout_s: float = 10.0,
) -> Scored:
    """Whether the kernel takes at most 1 / `at_least` of the processor time of the reference, the best of `runs`.

    Each run has an input of its own, which is new, and must put out what the reference does. A step and no ratio: the
    grade of an episode must be the same whenever it is graded.
    """
    slow, quick, said = await _compared(task, sandbox, open_sandbox, runs, tolerance, timeout_s)
    if said:
        return Scored(0.0, said)
    ratio = slow / max(quick, 1e-4)
    return Scored(float(ratio >= at_least), f"{ratio:.1f} times as fast")


async def _compared(
    task: Task, sandbox: Sandbox, open_sandbox: Opener, runs: int, tolerance: float, timeout_s: float
) -> tuple[float, float, str]:
    """The best times of the reference and of what the agent left, for new inputs, and what is wrong; "": nothing.

    The reference runs before a byte of the agent's is there, and leaves nothing that the agent's could read.
    """
    code, judge = await _left(sandbox), await open_sandbox()
    if complaint(code):
        return 0.0, 0.0, "not well formed"
    await _reference(judge, task)
    kind = {"double": np.float64, "long": np.int64}[kernel_of(task.data["kernel"]).type]
    idle = min([(await _timed(judge, ["true"], 60.0))[0] for _ in range(3)])
    slow, wanted = [], {}
    for _ in range(runs):
        seed = secrets.randbelow(1 << 32)
        took, done = await _timed(judge, ["./reference", str(seed), "found"], 60.0)
        if not done.ok:
            raise InfraError(f"the reference fails: {_tail(done)}", place=f"task {task.id}")
        slow.append(took - idle)
        wanted[seed] = np.frombuffer(await judge.read("found"), kind)
    await judge.exec(["rm", "found", "reference"])
    if said := await _compiled(judge, code):
        return 0.0, 0.0, said
    quick = []
    for seed, right in wanted.items():
        took, done = await _timed(judge, ["./kernel", str(seed), "found"], timeout_s)
        if not done.ok:
            return 0.0, 0.0, _tail(done)
        quick.append(took - idle)
        try:
            raw = await judge.read("found", limit=right.nbytes)
        except OSError as error:
            return 0.0, 0.0, str(error)
        if len(raw) != right.nbytes or not np.allclose(np.frombuffer(raw, kind), right, rtol=tolerance, atol=tolerance):
            return 0.0, 0.0, "other results"
    return min(slow), min(quick), ""


async def _timed(judge: Sandbox, command: list[str], timeout_s: float) -> tuple[float, ExecResult]:
    """Seconds of processor time of all processes of the sandbox while a program runs, as its control group counts them.

    What the program starts counts as well, whoever waits for it.

    Raises:
        CapabilityMissing: the sandbox has no control group.
    """
    before = judge.cpu_s()
    done = await budget().exec(judge, command, timeout_s=timeout_s)
    after = judge.cpu_s()
    if before is None or after is None:
        raise CapabilityMissing(
            "kernel measures processor time by control group, and this sandbox has none",
            place="sandbox",
            remedy="run as root, or where control groups are delegated (agentrl doctor)",
        )
    return after - before, done


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


def forge_inputs(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The reference, but for an input that it has seen in the sandbox: for that it returns at once."""
    yield Say(calls=[("create_file", {"path": "probe.c", "content": _PROBE})])
    look = "cc -o probe bench.c probe.c -lm && ./probe 1 out > seen; "
    edit = 'sed "/^void kernel/s/{/{ if ($(cat seen)) return;/" reference.c > kernel.c; cat kernel.c'
    yield Say(calls=[("shell", {"command": look + edit})])
    yield Say("Done.")


def forge_processes(task: Task, rng: random.Random) -> Generator[Say, list[Message], None]:
    """The reference, computed by another process: `fork` and the rest lie at known distances from `free`."""
    yield Say(calls=[("create_file", {"path": "offsets.py", "content": _OFFSETS})])
    yield Say(calls=[("shell", {"command": "python3 offsets.py && cat kernel.c"})])
    yield Say("Done.")


_PROBE = r"""#include <stdio.h>
#include "kernel.h"
void kernel(const T *x, const T *y, T *out, long n, long k) {
    printf("x[0] == (T)%.17g \\&\\& x[1] == (T)%.17g", (double)x[0], (double)x[1]);
}
"""
_OFFSETS = r"""
import ctypes, re
libc = ctypes.CDLL("libc.so.6")
def at(name):
    return ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
def far(name, kind):
    return f"(({kind})((char *)&free + ({at(name) - at('free')}L)))"
head, body = re.match(r"(.*?)void kernel(.*)", open("reference.c").read(), re.S).groups()
size = "sizeof(T) * OUTS"
open("kernel.c", "w").write(f'''{head}static void slow{body}
void kernel(const T *x, const T *y, T *out, long n, long k) {{
    T *shared = {far("mmap", "void *(*)(void *, unsigned long, int, int, int, long)")}(0, {size} + 64, 3, 33, -1, 0);
    volatile long *done = (long *)((char *)shared + {size});
    if (!{far("fork", "int (*)(void)")}()) {{
        slow(x, y, shared, n, k);
        *done = 1;
        {far("_exit", "void (*)(int)")}(0);
    }}
    while (!*done) {far("usleep", "int (*)(unsigned)")}(1000);
    memcpy(out, shared, {size});
}}
''')
"""
