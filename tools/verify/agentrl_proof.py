"""Runs tests and proves that they passed, which an exit code of 0 alone does not.

`python3 agentrl_proof.py`, with a JSON object on stdin: `word`, printed as the last line if and only if the tests
passed; `kind` and its fields:

- `pytest`, `unittest`: `args`; `module`: true if run with `-m`. At least one test must pass (with pytest: as many as
  `least` says), and none fail.
- `script`: `file` and `args`. It must reach its end, or exit with 0 itself; the code must not exit.
- `statements`: `text`, run after the code in `entry`; `stub`: the code runs elsewhere; `names`: built-in names that the
  statements take from the code. They must reach their end.

`foreign` lists files whose exits do not count: the files of the code.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import importlib.util
import json
import os
import runpy
import sys
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, NoReturn

    Job = dict[str, Any]
    Problem = str | int | None
    """A text or an exit code; empty, 0 or None if the tests passed."""

HERE = os.path.dirname(os.path.abspath(globals().get("__file__", "/")))  # no file with -c


def search_first(folder: str) -> None:
    """Puts a folder of the tests first on the import path."""
    sys.path[: 0 if sys.flags.isolated else 1] = [folder]


class Names(dict[str, object]):
    """Global names of statements: names of the code, except those that the statements judge with.

    Exceptions are the built-in functions, and modules whose attributes the statements use: `math.isclose` is always
    Python's, even if the code defines `math`.
    """

    def __init__(self, module: ModuleType, text: str, wanted: list[str]) -> None:
        super().__init__(__name__="tests")
        self.module, self.wanted = module, wanted
        owners = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
        used = {owner.id for owner in owners if isinstance(owner, ast.Name)}
        self.modules = used & set(getattr(sys, "stdlib_module_names", sys.builtin_module_names)) - set(wanted)

    def __missing__(self, name: str) -> Any:
        if name[:2] == "__" or (hasattr(builtins, name) and name not in self.wanted):
            raise KeyError(name)
        try:
            found = getattr(self.module, name)
        except AttributeError:
            raise KeyError(name) from None
        if name in self.modules:
            return importlib.import_module(name)
        if isinstance(found, type(sys)):
            with contextlib.suppress(ImportError):  # a module imported by the code
                return importlib.import_module(found.__name__)
        return found


def run_pytest(job: Job) -> Problem:
    import pytest

    search_first(os.getcwd() if job["module"] else os.path.dirname(sys.executable))
    passed = []

    class Counter:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
                passed.append(1)

    code = pytest.main(job["args"], plugins=[Counter()])
    if code == 0 and len(passed) < job.get("least", 1):
        return f"{len(passed)} tests passed, not {job['least']}" if passed else "no test passed"
    return "" if code == 0 else f"pytest ended with {int(code)}"


def run_unittest(job: Job) -> Problem:
    import unittest

    search_first(os.getcwd())
    result = unittest.main(module=None, argv=["python3 -m unittest", *job["args"]], exit=False).result
    if not result.wasSuccessful():
        return "unittest: not passed"
    passed = result.testsRun - len(result.skipped) - len(result.expectedFailures)
    return "" if passed > 0 else "no test passed"


def run_script(job: Job) -> Problem:
    sys.argv = [job["file"], *job["args"]]
    search_first(os.path.dirname(os.path.abspath(job["file"])))
    runpy.run_path(job["file"], run_name="__main__")
    return ""


def run_statements(job: Job) -> Problem:
    text = compile(job["text"], "test", "exec", dont_inherit=True)  # not the future statements of this file
    if job["stub"]:
        search_first(os.getcwd())
        spec = importlib.util.spec_from_file_location("solution", job["entry"])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["solution"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        exec(text, Names(module, job["text"], job["names"]))
    else:
        search_first(os.getcwd())
        names = {"__name__": "solution"}
        with open(job["entry"], encoding="utf-8") as file:
            exec(compile(file.read(), job["entry"], "exec", dont_inherit=True), names)
        exec(text, names)
    return ""


KINDS = {"pytest": run_pytest, "unittest": run_unittest, "script": run_script, "statements": run_statements}


def main() -> NoReturn:
    job, say = json.load(sys.stdin), os.dup(1)
    if sys.flags.isolated:  # the environment comes from the recipe, the folders from the agent
        sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    word, foreign = job.pop("word").encode(), {*job["foreign"], os.path.join(HERE, "agentrl_stub.py")}
    try:
        problem = KINDS[job["kind"]](job)
    except SystemExit as error:
        by = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)}
        by_code = {os.path.abspath(path) for path in by} & foreign
        problem = error.code if job["kind"] == "script" and not by_code else "the tests did not reach their end"
    except BaseException:
        traceback.print_exc()
        problem = 1
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    if not problem:
        os.write(say, b"\n" + word + b"\n")
        os._exit(0)
    if problem != 1:
        os.write(2, f"{problem}\n".encode("utf-8", "replace"))
    os._exit(problem if type(problem) is int and 0 < problem < 256 else 1)


if __name__ == "__main__":
    main()
