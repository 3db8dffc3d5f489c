"""Tests of code, run where the agent could not have prepared anything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentrl.rewards.declare import Scored, reward
from agentrl.rewards.functions.verifiers import code_in
from agentrl.rewards.grading import budget
from agentrl.rewards.isolation import apart, check_isolation, job_of, passes, prepare_proof, put
from agentrl.rewards.left_files import NotLeft, files_left
from agentrl.rewards.programs import check_started
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError, TaskError
from agentrl.types.task import Task

if TYPE_CHECKING:
    from agentrl.types.sandbox import ExecResult, Sandbox

SOLUTION = "solution.py"
SHARED_PROCESS = "with isolation: none, code that patches the test runner passes; isolation: process keeps them apart"


def _forgeable(settings: Mapping[str, Any]) -> str:
    return SHARED_PROCESS if settings.get("isolation") == "none" else ""


@reward(costs=["sandbox"], bounds=(0, 1), forgeable=_forgeable)
async def code_tests(
    task: Task,
    episode: Episode,
    open_sandbox: Callable[[], Awaitable[Sandbox]],
    sandbox: Sandbox | None = None,
    *,
    key: str = "tests",
    files: list[str] | None = None,
    files_key: str | None = None,
    isolation: Literal["process", "none"] = "process",
    trust_operators: bool = False,
    entry_point: str = "entry_point",
    partial: bool = False,
    timeout_s: float = 10.0,
) -> float | Scored:
    """1 if the code passes its tests, else 0; with `partial` the share of the tests that it passes.

    Code and tests run in two fresh sandboxes: nothing that the agent installed, patched or left running takes part, and
    the code can reach neither the process nor the expected values of the tests. `task.data[key]` is one of

    - a list of `{input, output}`: the code is a program; its stdout must equal `output` but for space at line ends.
    - a list of texts: Python statements that see the code's names, each in a separate process (`assert f(2) == 4`).
    - `{files: {path: text}, command: ..., shared: {path: text}}`: the command must exit with 0, and if it is pytest or
      unittest, at least one test must have passed. `files` go to the sandbox of the tests, `shared` to both.

    Args:
        files: taken from the agent's sandbox: paths, patterns (`src/**/*.py`) and folders (`src/`). Patterns and
            folders leave out hidden files, code of other languages, and what Python or pytest load by themselves
            (`conftest.py`); of a file with the name of a library (`numpy.py`) the tests import the library. Without it
            the code is the answer (its last fenced block). Statements see the names of the first file.
        files_key: the field of `task.data` with the `files` of this task, in place of those of the recipe.
        isolation: `none` runs tests and code in one sandbox and mostly in one process, for tests in other languages:
            a policy that learns to look for the tests can pass them.
        trust_operators: the code's objects evaluate ==, <, `in` and arithmetic with plain data themselves. Then an
            object that equals everything passes `assert f(2) == 4`.
        entry_point: where in `task.data` the name of the function under test is, or a list of them. It is only needed
            where statements mean the code's function, and it has the name of a built-in one (`sum`).
        timeout_s: processor time for one test, or for the command; five times as much wall time.

    Raises:
        TaskError: no tests, tests of another form, or files of the task that cannot be written.
        RecipeError: files without a sandbox of the agent, or isolation of code that is not Python.
    """
    tests = _tests(task, key)
    wanted = _wanted(task, files_key) or files or []
    solution: dict[str, bytes] = {}
    if wanted and sandbox is None:
        raise RecipeError("code_tests takes files from the agent's sandbox, and there is none", place="rewards")
    try:
        if sandbox is not None:
            solution = await files_left(sandbox, wanted)
    except NotLeft as problem:
        return Scored(0.0, str(problem))
    if not wanted:
        if episode.answer is None:
            return 0.0
        solution[SOLUTION] = code_in(episode.answer).encode("utf-8", "replace")
    entry = next(iter(solution))
    if not isinstance(tests, Mapping) and isinstance(tests[0], Mapping):
        return await _programs(await open_sandbox(), solution, entry, tests, partial, timeout_s)
    mine = _texts(task, tests, "files"), _texts(task, tests, "shared")
    if isolation == "process":
        check_isolation(list(solution))
        both = apart(open_sandbox, solution, *mine[::-1], named=wanted or None, trust_operators=trust_operators)
        async with both as (judge, code):
            bench = _Bench(judge, timeout_s, beside=(code,))
            return await _judged(bench, task, task.data.get(entry_point), tests, entry, partial)
    judge = await open_sandbox()
    await put(judge, solution)
    await put(judge, {**mine[0], **mine[1]})
    await prepare_proof(judge)
    foreign = [f"{judge.spec.workdir}/{path}" for path in solution if path not in mine[0]]
    return await _judged(_Bench(judge, timeout_s, foreign), task, None, tests, entry, partial)


@dataclass(frozen=True)
class _Bench:
    """Sandbox of the tests, and the time limit of one test.

    Attributes:
        foreign: the files of the code in this sandbox; None if stubs replace them.
        beside: the sandbox of the code, if it is a separate one.
    """

    judge: Sandbox
    timeout_s: float
    foreign: Sequence[str] | None = None
    beside: tuple[Sandbox, ...] = ()

    async def same(self) -> Sandbox:
        """Returns the sandbox of the tests, whose programs are the image's."""
        return self.judge

    async def passes(self, job: Mapping[str, Any]) -> tuple[ExecResult, bool]:
        return await passes(self.judge, job, self.timeout_s, foreign=self.foreign or (), beside=self.beside)


async def _programs(
    sandbox: Sandbox, solution: Mapping[str, bytes], entry: str, tests: Any, partial: bool, timeout_s: float
) -> Scored:
    """Runs the code as a program. The expected output never enters the sandbox."""
    await put(sandbox, solution)

    async def problem(test: Mapping[str, Any]) -> str:
        stdin = str(test["input"]).encode("utf-8", "surrogateescape")
        result = await budget().exec(sandbox, ["python3", entry], stdin=stdin, timeout_s=timeout_s)
        same = _lines(result.stdout.decode("utf-8", "replace")) == _lines(str(test["output"]))
        return "" if result.ok and same else _tail(result)

    return await _share(tests, problem, partial)


async def _judged(bench: _Bench, task: Task, wanted: Any, tests: Any, entry: str, partial: bool) -> Scored:
    """Runs the tests.

    Raises:
        SandboxImageUnusable: the image lacks a program that the command of the tests names.
    """
    if isinstance(tests, Mapping):
        job = job_of(tests["command"]) if isinstance(tests["command"], str) else None
        if job is None:
            result = await budget().exec(bench.judge, tests["command"], timeout_s=bench.timeout_s, beside=bench.beside)
            if isinstance(tests["command"], str):
                await check_started(result, tests["command"], task, bench.judge.spec, bench.same)
            return Scored(float(result.ok), "" if result.ok else _tail(result))
        result, passed = await bench.passes(job)
        return Scored(float(passed), "" if passed else _tail(result))
    names = wanted if isinstance(wanted, list) else [wanted] if isinstance(wanted, str) else []

    async def problem(test: str) -> str:
        job = {"kind": "statements", "text": test, "entry": entry, "stub": bench.foreign is None, "names": names}
        result, passed = await bench.passes(job)
        return "" if passed else _tail(result)

    return await _share(tests, problem, partial)


async def _share(tests: Sequence[Any], problem: Callable[[Any], Awaitable[str]], partial: bool) -> Scored:
    """Returns the share of the tests that pass. Tests without time left in the budget fail."""
    failed: list[str] = []
    for number, test in enumerate(tests):
        if budget().used_up:
            failed += ["the verifier's processor time is spent"] * (len(tests) - number)
            break
        if found := await problem(test):
            failed.append(f"test {number}: {found}")
            if not partial:
                break
    return Scored(1.0 - len(failed) / len(tests) if partial else float(not failed), "; ".join(failed[:3]))


def _tests(task: Task, key: str) -> Any:
    tests = task.data.get(key)
    kinds = (str, Mapping)
    if isinstance(tests, list) and tests and any(all(isinstance(test, kind) for test in tests) for kind in kinds):
        if isinstance(tests[0], str) or all({"input", "output"} <= set(test) for test in tests):
            return tests
    elif isinstance(tests, Mapping) and isinstance(tests.get("files"), Mapping) and "command" in tests:
        return tests
    raise TaskError(
        f"tests {key!r} are {tests!r}" if key in task.data else f"no tests: data has no {key!r}",
        place=f"task {task.id}",
        remedy="give a list of texts, or of {input, output}, or {files, command}",
    )


def _wanted(task: Task, key: str | None) -> list[str]:
    """Returns the files of a task.

    Raises:
        TaskError: they are no list of texts.
    """
    found = task.data.get(key) if key is not None else None
    if found is None:
        return []
    if isinstance(found, list) and found and all(isinstance(each, str) and each for each in found):
        return found
    raise TaskError(f"{key!r} is {found!r:.80}", place=f"task {task.id}", remedy="give a list of paths or patterns")


def _texts(task: Task, tests: Any, key: str) -> dict[str, str | bytes]:
    found = tests.get(key, {}) if isinstance(tests, Mapping) else {}
    if isinstance(found, Mapping) and all(isinstance(text, str | bytes) for text in found.values()):
        return dict(found)
    raise TaskError(f"{key!r} of the tests is {found!r}", place=f"task {task.id}", remedy="give texts by path")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _tail(result: ExecResult) -> str:
    lines = result.text.strip().splitlines()
    return f"{result.outcome}{f': {lines[-1][:200]}' if lines else ''}"
