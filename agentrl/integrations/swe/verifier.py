"""The reward `swe_tests`: the tests of a SWE-bench row, on the files that the agent changed."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from agentrl.integrations.swe.rows import SweRow, row_of
from agentrl.integrations.swe.tool import check_out, forget
from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.code import SHARED_PROCESS
from agentrl.rewards.functions.patch import changes
from agentrl.rewards.functions.state import end_programs_of
from agentrl.rewards.grading import budget
from agentrl.rewards.isolation import CONFIGURATION, apart, is_loaded_by_itself, passes, prepare_proof
from agentrl.types.errors import TaskError
from agentrl.types.parts.foreign_json import read_json
from agentrl.types.paths import data_path
from agentrl.types.sandbox import ExecResult, Sandbox, SandboxImageUnusable
from agentrl.types.task import Task

_LIMIT = 16 << 20  # bytes of all changed files
_PATH_CHARS = 4096  # of a path, Linux's limit
_COPY_S = 120.0
_NO_CODE = b"raise ModuleNotFoundError('the agent removed this file')\n"

Changes = Mapping[str, list[str] | None]
"""By path None for a file that is gone, else git's mode and the content in base64."""


def _forgeable(settings: Mapping[str, Any]) -> str:
    return SHARED_PROCESS if settings.get("isolation", "none") == "none" else ""


@reward(source="SWE-bench, arXiv:2310.06770", costs=["sandbox"], bounds=(0, 1), verifier=True, forgeable=_forgeable)
async def swe_tests(
    task: Task,
    open_sandbox: Callable[[], Awaitable[Sandbox]],
    sandbox: Sandbox,
    *,
    isolation: Literal["none", "process"] = "none",
    python: str = "python3",
    timeout_s: float = 300.0,
) -> float | Scored:
    """1 if all tests of FAIL_TO_PASS and PASS_TO_PASS pass, else 0.

    The tests run in a fresh sandbox with the repository at `base_commit`, without its history, `test_patch`, and the
    files that the agent changed. Changes of files that `test_patch` touches do not count. Nor do changes of other files
    of the row's tests and of files that configure pytest or Python (`conftest.py`, `pyproject.toml`, ...), unless the
    row's own `patch` changes them. Every test must pass: one that is skipped or not found fails.

    Args:
        isolation: `process` runs the code in one sandbox and the tests in another, as `code_tests` does: the policy
            cannot forge the result, but tests that look into the code fail. `none` runs both in one process, as
            SWE-bench does: code that patches pytest while it is imported passes.
        python: the interpreter that has pytest and the package.
        timeout_s: processor time of the tests; five times as much wall time.

    Raises:
        TaskError: the row is not of the form, or its `test_patch` does not apply.
        SandboxImageUnusable: the image holds no such repository, or lacks git or pytest.
    """
    row = row_of(task)
    if not await end_programs_of(sandbox):
        return Scored(0.0, "the agent's programs could not be ended")
    judge = await open_sandbox()
    base = await _repository(task, judge)
    await _check_pytest(task, judge, python)
    tests = await _apply_tests(task, row, judge)
    found = await _run_changes(sandbox, "find", {"base": base, "limit": _LIMIT})
    if isinstance(found, str):
        return Scored(0.0, f"the changes of the agent cannot be taken: {found}")
    kept = _counted(found, row, tests, isolation == "process")
    if not kept:
        return Scored(0.0, "the agent changed nothing that counts")
    ids = list(dict.fromkeys([*row.fail_to_pass, *row.pass_to_pass]))
    job = {
        "kind": "pytest",
        "module": True,
        "args": ["-q", "--tb=line", "-p", "no:cacheprovider", *ids],
        "least": len(ids),
        "python": python,
    }
    if isolation == "process":
        result, passed = await _apart(task, row, judge, open_sandbox, base, kept, job, timeout_s)
    else:
        if isinstance(problem := await _run_changes(judge, "make", kept), str):
            return Scored(0.0, f"the changes of the agent cannot be made: {problem}")
        await prepare_proof(judge)
        foreign = [f"{judge.spec.workdir}/{path}" for path in kept]
        result, passed = await passes(judge, job, timeout_s, foreign=foreign)
    lines = (result.stdout.decode("utf-8", "replace").strip() or result.text.strip()).splitlines()
    return Scored(float(passed), "" if passed else f"{result.outcome}{f': {lines[-1][:200]}' if lines else ''}")


async def _apart(
    task: Task,
    row: SweRow,
    judge: Sandbox,
    open_sandbox: Callable[[], Awaitable[Sandbox]],
    base: Mapping[str, list[str]],
    kept: Changes,
    job: Mapping[str, Any],
    timeout_s: float,
) -> tuple[ExecResult, bool]:
    """Runs the tests where stubs replace all Python files that are no tests.

    Files that neither the commit nor the row's patch has are for the code alone: the tests do not need them, and a
    module or a plug-in among them could take the place of one that the tests judge with (`numpy`).
    """
    code = await open_sandbox()
    await _repository(task, code)
    boxes = [code, judge]
    solution: dict[str, bytes] = {}
    for path in [*base, *kept]:
        if path.endswith(".py") and not _is_test(path) and path not in solution:
            entry = kept.get(path, [])
            if entry is None:
                solution[path] = _NO_CODE
            elif entry:
                solution[path] = base64.b64decode(entry[1])
            elif base[path][0] != "120000":
                solution[path] = await code.read(path)
    files = solution | {
        path: base64.b64decode(entry[1]) for path, entry in kept.items() if entry and path not in solution
    }
    of_row = base.keys() | changes(row.patch).keys()
    known = files.keys() & of_row if row.patch else files.keys()
    seen, unseen = ({path: files[path] for path in files if (path in known) == wanted} for wanted in (True, False))

    async def opened() -> Sandbox:
        return boxes.pop(0)

    async with apart(opened, seen, {}, {}, unseen=unseen, named=of_row, python=job["python"]) as (tests, beside):
        return await passes(tests, job, timeout_s, beside=(beside,))


def _is_test(path: str) -> bool:
    """Returns True for a file that runs with the tests: it is no code under test."""
    parts = PurePosixPath(path).parts
    name = parts[-1]
    in_folder = any(each in ("test", "tests", "testing") for each in parts[:-1])
    return in_folder or name in CONFIGURATION or name == "setup.py" or name.startswith("test_") or "_test." in name


def _counted(found: Changes, row: SweRow, tests: set[str], are_apart: bool) -> dict[str, list[str] | None]:
    """Returns the changes that count.

    Args:
        tests: the files of `test_patch`. A change of a folder above them, or below their paths, does not count either.
        are_apart: whether code and tests run apart: then helpers and data of the tests are theirs alone.
    """
    repaired = changes(row.patch).keys()
    tests = tests | ({each.partition("::")[0] for each in (*row.fail_to_pass, *row.pass_to_pass)} - repaired)
    above = {str(parent) for path in tests for parent in PurePosixPath(path).parents}

    def counts(path: str) -> bool:
        if path in tests or path in above or any(str(each) in tests for each in PurePosixPath(path).parents):
            return False
        return path in repaired or not (is_loaded_by_itself(path) or (are_apart and _is_test(path)))

    return {path: entry for path, entry in found.items() if counts(path)}


async def _repository(task: Task, sandbox: Sandbox) -> dict[str, list[str]]:
    """Prepares the repository as the tool does, so that the code cannot read later commits when it runs in the tests.

    Returns:
        Mode and hash by path: the files of the commit, and those that the image adds.
    """
    await check_out(task, sandbox)
    of_commit = await _base(sandbox)
    await forget(task, sandbox)
    return await _base(sandbox) | of_commit


async def _check_pytest(task: Task, judge: Sandbox, python: str) -> None:
    done = await judge.exec([python, "-c", "import pytest"], cwd="/", timeout_s=_COPY_S)
    if not done.ok:
        raise SandboxImageUnusable(
            f"{python} of the image {judge.spec.image!r} has no pytest: {done.text[-300:].strip()}",
            place=f"task {task.id!r}",
            remedy="name the interpreter of the tests (rewards.swe_tests.python), or install pytest in the image",
        )


async def _base(judge: Sandbox) -> dict[str, list[str]]:
    """Returns mode and hash of each file of the commit."""
    listed = await judge.exec(["git", "ls-tree", "-r", "-z", "HEAD"], timeout_s=_COPY_S, output_limit=_LIMIT)
    found = {}
    for line in listed.stdout.decode("utf-8", "surrogateescape").split("\0"):
        about, _, path = line.partition("\t")
        if path and about.split()[1] == "blob":
            found[path] = [about.split()[0], about.split()[2]]
    return found


async def _run_changes(sandbox: Sandbox, what: str, given: Mapping[str, Any]) -> dict[str, Any] | str:
    """Runs `tools/verify/agentrl_changes.py`; returns its output, or why it failed."""
    program = data_path("tools", "verify", "agentrl_changes.py").read_text()
    words = ["python3", "-I", "-c", program, what]
    asked = json.dumps(given).encode()
    done = await budget().exec(sandbox, words, stdin=asked, timeout_s=_COPY_S, output_limit=4 * _LIMIT)
    try:
        said = read_json(done.stdout) if done.ok else None
    except ValueError:
        said = None
    return said if isinstance(said, dict) and all(map(_is_change, said.items())) else done.text[-300:].strip()


def _is_change(item: tuple[str, Any]) -> bool:
    """Returns True for an entry of the form; a sandbox may say anything."""
    if len(item[0]) > _PATH_CHARS:
        return False
    path, entry = PurePosixPath(item[0]), item[1]
    if path.is_absolute() or {"..", ".git"} & {*path.parts} or not path.parts or str(path) != item[0]:
        return False
    if entry is None:
        return True
    try:
        mode, content = entry
        base64.b64decode(content, validate=True)
    except (ValueError, TypeError):
        return False
    return mode in ("100644", "100755", "120000")


async def _apply_tests(task: Task, row: SweRow, sandbox: Sandbox) -> set[str]:
    """Applies `test_patch` to the files of the commit; returns the files that it touches."""
    if not row.test_patch:
        return set()
    words = ["git", "apply", "--whitespace=nowarn", "--numstat", "-z", "--apply", "-"]
    done = await sandbox.exec(words, stdin=row.test_patch.encode(), timeout_s=_COPY_S, output_limit=_LIMIT)
    if not done.ok:
        said = f"its test_patch does not apply: {done.text[-300:].strip()}"
        raise TaskError(said, place=f"task {task.id!r}", remedy="use the image of the row, or leave the row out")
    listed = done.stdout.decode("utf-8", "surrogateescape").split("\0")
    return {each.split("\t", 2)[2] for each in listed if each.count("\t") >= 2} | changes(row.test_patch).keys()
