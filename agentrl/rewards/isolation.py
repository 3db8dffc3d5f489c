"""Runs tests and the code under test in two sandboxes, and proves that the tests passed.

In a shared process the code could end the tests, patch the verifier or read expected values; in a shared sandbox it
could still find them. So the code runs in a sandbox without tests, and the tests run in a sandbox without the code.
There the code's modules are stubs (`tools/verify/agentrl_stub.py`) that forward attribute access and calls. The driver
only carries bytes between the two sandboxes.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.rewards.grading import budget
from agentrl.types.errors import RecipeError
from agentrl.types.paths import data_path
from agentrl.types.sandbox import SandboxLost

if TYPE_CHECKING:
    from agentrl.types.sandbox import ExecResult, Process, Sandbox

T = TypeVar("T")

FOLDER = "/tmp/agentrl-verify"
"""The folder of our programs in the sandboxes."""

_MOST = 256 << 20  # bytes from one side to the other
_STUB = """\
import os, sys
sys.path.insert(0, {folder!r})
try:
    import agentrl_stub
finally:
    sys.path.remove({folder!r})
if __name__ == "__main__":
    agentrl_stub.program({path!r}, __spec__.name if __spec__ else "")
else:
    agentrl_stub.become(__name__, {path!r}, yields={yields})
"""
CONFIGURATION = {
    "conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml",
    "pyproject.toml", "setup.cfg", "tox.ini", ".coveragerc", "noxfile.py", "pyvenv.cfg", "Makefile", "makefile",
    "GNUmakefile", "unittest.cfg", ".pdbrc",
}  # fmt: skip
"""Files that Python and test runners load by themselves: where the tests run, never those of the agent."""
_NEVER = {".pth", ".pyc", ".pyo", ".pyd", ".so", ".egg", ".whl", ".pyz"}
_OTHER_CODE = {
    ".sh", ".bash", ".c", ".cc", ".cpp", ".h", ".hpp", ".rs", ".go", ".js", ".mjs", ".cjs", ".ts", ".java", ".kt",
    ".cs", ".rb", ".pl", ".php", ".lua", ".r", ".jl", ".hs", ".scala", ".swift", ".pyx", ".ipynb",
}  # fmt: skip


def is_other_code(path: str) -> bool:
    """Returns True for code of another language, which tests would run themselves."""
    return PurePosixPath(path).suffix.lower() in _OTHER_CODE


def is_loaded_by_itself(path: str) -> bool:
    """Returns True for a file that Python or a test runner loads by itself."""
    return PurePosixPath(path).name in CONFIGURATION or PurePosixPath(path).suffix in _NEVER


@cache
def _programs(*names: str) -> dict[str, bytes]:
    return {f"{FOLDER}/{name}.py": data_path("tools", "verify", f"{name}.py").read_bytes() for name in names}


async def put(sandbox: Sandbox, files: Mapping[str, str | bytes]) -> None:
    """Writes files. Raises OSError."""
    await asyncio.gather(*(sandbox.write(path, content) for path, content in files.items()))


def check_isolation(paths: Sequence[str]) -> None:
    """Checks that the agent's files can be isolated from the tests.

    Raises:
        RecipeError: a file is code of another language, which the tests would run themselves.
    """
    for path in paths:
        if is_other_code(path):
            raise RecipeError(
                f"{path} is code, but not Python: tests cannot be kept apart from it",
                place="rewards: code_tests.isolation",
                remedy="set isolation: none (docs/verifiers.md says what it does not promise), or give {input, output}",
            )


@asynccontextmanager
async def apart(
    open_sandbox: Callable[[], Awaitable[Sandbox]],
    solution: Mapping[str, bytes],
    shared: Mapping[str, str | bytes],
    tests: Mapping[str, str | bytes],
    *,
    trust_operators: bool = False,
    unseen: Mapping[str, bytes] | None = None,
    named: Container[str] | None = None,
    python: str = "python3",
) -> AsyncIterator[tuple[Sandbox, Sandbox]]:
    """Puts the agent's files into one fresh sandbox and the tests into another, and connects the two.

    Args:
        solution: the agent's files by path. The sandbox of the tests gets stubs of Python files, and copies of data.
        shared: files of the task for both sandboxes.
        tests: files of the task that the code must not see.
        trust_operators: whether comparisons of an object of the code with plain data are sent to the code.
        unseen: more files of the agent, which only the sandbox of the code gets.
        named: paths that the task names itself. In the sandbox of the tests, a library or a module of the tests is
            imported in place of another file of the same name. None: all of them.
        python: the interpreter of the code.

    Yields:
        The sandbox of the tests, and that of the code.

    Raises:
        OSError: the files do not fit a sandbox.
        SandboxLost: the sandbox of the code was lost, so that the result of the tests is not a verdict.
    """
    code, judge = await _both(open_sandbox(), open_sandbox())
    stubs: dict[str, str | bytes] = {}
    for path, content in solution.items():
        if not is_loaded_by_itself(path):
            stub = _STUB.format(folder=FOLDER, path=path, yields=named is not None and path not in named)
            stubs[path] = stub if path.endswith(".py") else content
    common = _programs("agentrl_mux", "agentrl_plain", "agentrl_names")
    judging = {**_programs("agentrl_stub", "agentrl_objects", "agentrl_proof"), **common, **stubs, **shared, **tests}
    if trust_operators:
        judging[f"{FOLDER}/trust_operators"] = b""
    serving = {**_programs("agentrl_server"), **common, **solution, **(unseen or {}), **shared}
    await _both(put(code, serving), put(judge, judging))
    server, relay = await _both(
        code.spawn([python, f"{FOLDER}/agentrl_server.py"]),
        judge.spawn(["python3", f"{FOLDER}/agentrl_mux.py", f"{FOLDER}/socket"]),
    )
    ready = await relay.read()
    carriers = [asyncio.create_task(_carry(relay, server, ready)), asyncio.create_task(_carry(server, relay))]
    try:
        yield judge, code
        if loss := (await code.health()).loss:
            raise loss
    finally:
        for carrier in carriers:
            carrier.cancel()
        await asyncio.gather(*carriers, return_exceptions=True)


async def _both(one: Awaitable[T], other: Awaitable[T]) -> tuple[T, T]:
    """Starts both at the same time. If one fails, the other is still awaited, so that no start is left pending."""
    found = await asyncio.gather(one, other, return_exceptions=True)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found  # type: ignore[return-value]


async def _carry(source: Process, sink: Process, data: bytes = b"") -> None:
    """Forwards bytes until one side ends or is lost; then closes the other."""
    carried = 0
    with suppress(OSError):  # the other side has stopped reading
        with suppress(SandboxLost):
            while (data := data or await source.read(size=1 << 18)) and carried < _MOST:
                await sink.write(data)
                carried, data = carried + len(data), b""
        await sink.close_stdin()


async def passes(
    sandbox: Sandbox,
    job: Mapping[str, Any],
    timeout_s: float,
    *,
    foreign: Sequence[str] = (),
    isolated: bool = False,
    beside: Sequence[Sandbox] = (),
) -> tuple[ExecResult, bool]:
    """Runs tests with `tools/verify/agentrl_proof.py`. Returns the result, and True if they prove that they passed.

    An exit code of 0 is not enough: code in the same process can exit with it.

    Args:
        job: the result of `job_of`, or statements.
        foreign: files of the code, if it shares the process: their `sys.exit` does not end the tests.
        isolated: loads none of the sandbox's files before the tests; for the agent's own sandbox.
        beside: the sandbox of the code, whose processor time counts as well.
    """
    word = secrets.token_hex(16)
    given = json.dumps({"word": word, "foreign": list(foreign), **job}).encode()
    [(path, source)], python = _programs("agentrl_proof").items(), job.get("python", "python3")
    program = [python, "-I", "-c", source.decode()] if isolated else [python, path]
    result = await budget().exec(sandbox, program, stdin=given, timeout_s=timeout_s, beside=beside)
    said, mark, _ = result.stdout.rpartition(b"\n" + word.encode())
    return (replace(result, stdout=said), result.ok) if mark else (result, False)


async def prepare_proof(sandbox: Sandbox) -> None:
    """Installs the program of `passes` in a single sandbox."""
    await put(sandbox, _programs("agentrl_proof"))


_PYTHON = re.compile(r"(/usr(/local)?/bin/)?python(3(\.\d+)?)?")
_SHELL = re.compile(r"[|&;<>()$`\\\n*?\[\]{}~!#]")


def job_of(command: str) -> dict[str, Any] | None:
    """Parses a command that runs Python tests, for `passes`; None for other commands.

    `pytest ...`, `python3 -m pytest ...`, `python3 -m unittest ...` and `python3 FILE.py ...`, without shell
    syntax.
    """
    if _SHELL.search(command):
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    match words:
        case [("pytest" | "py.test"), *args]:
            return {"kind": "pytest", "args": args, "module": False}
        case [python, "-m", ("pytest" | "unittest") as kind, *args] if _PYTHON.fullmatch(python):
            return {"kind": kind, "args": args, "module": True, "python": python}
        case [python, file, *args] if _PYTHON.fullmatch(python) and file.endswith(".py"):
            return {"kind": "script", "file": file, "args": args, "python": python}
    return None
