"""Makes `mutants-PACKAGE.jsonl`: one small bug each, kept if it breaks a test.

    python recipes/swe-inject/mutate.py 25          # mutants a package

The bugs are those of SWE-smith's procedural modifiers (arXiv:2504.21798), implemented here with Python's `ast`.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from packages import PACKAGES, code_of, tests_of  # noqa: E402

_OPERATORS = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.And: "or",
    ast.Or: "and", ast.FloorDiv: "*", ast.Mod: "//",
}  # fmt: skip
_ALL: dict[str, list[str]] = {"boltons": [], "toolz": [], "sqlparse": ["tests/test_split.py", "tests/test_format.py"]}
"""What is run for a module without test files of its name, where that is not the whole package's."""
_TIMEOUT_S = 30
_ABSENT = ("numpy", "pandas", "wcwidth")  # tests that need them are skipped in the sandbox: they are here, too
sys.dont_write_bytecode = True  # a changed file of the same second would run as it was
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"


def edits(source: str) -> Iterator[tuple[str, int, int, str]]:
    """Every bug that can be put into the functions of a module: kind, start, end, new text."""
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line.encode()) + 1)
    data = source.encode()

    def at(line: int, column: int) -> int:
        return len(data[: starts[line - 1] + column].decode())

    def span(node: ast.AST) -> tuple[int, int]:
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def text(node: ast.AST) -> str:
        first, last = span(node)
        return source[first:last]

    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for node in (inner for function in functions for body in function.body for inner in ast.walk(body)):
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _OPERATORS:
                yield "comparison", *span(node), f"{text(left)} {_OPERATORS[type(operator)]} {text(right)}"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                yield "arithmetic", *span(node), f"{text(left)} {_OPERATORS[type(operator)]} {text(right)}"
            case ast.BoolOp(op=operator, values=[left, right]):
                yield "boolean", *span(node), f"{text(left)} {_OPERATORS[type(operator)]} {text(right)}"
            case ast.If(test=test) if not isinstance(test, ast.BoolOp | ast.NamedExpr):
                inner = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else None
                yield "condition", *span(test), text(inner) if inner else f"not ({text(test)})"
            case ast.Constant(value=bool() as value):
                yield "constant", *span(node), str(not value)
            case ast.Constant(value=int() as value):
                yield "constant", *span(node), str(value + 1)
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield "return", *span(value), "None"
            case ast.AugAssign() | ast.Assign() | ast.Raise():
                yield "removed", *span(node), "pass"
            case ast.IfExp(test=test, body=body, orelse=other):
                yield "swapped", *span(node), f"{text(other)} if {text(test)} else {text(body)}"


def tests_for(package: str, module: str) -> list[str]:
    """The test files that are run for a module: those of its name, or all of the package."""
    files = [path for path in tests_of(package) if re.search(r"(^|/)test_\w+\.py$", path)]
    own = [path for path in files if path.endswith(f"/test_{Path(module).stem}.py")]
    return own or _ALL.get(package, sorted(files))


class _Noted:
    """A plugin of pytest that notes how the tests end."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest for every phase of a test."""
        if report.failed:
            self.failed.append(report.nodeid.partition("[")[0])
        self.passed += report.when == "call" and report.passed


def failing(folder: Path, tests: list[str]) -> tuple[list[str], int]:
    """The first tests that fail, and the number of those that pass before.

    A process forked from this one runs them, so that pytest is imported once. A bug without end is killed.
    """
    told = folder / "told.json"
    told.unlink(missing_ok=True)
    if (child := os.fork()) == 0:
        signal.alarm(_TIMEOUT_S)
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.path.insert(0, str(folder))
        sys.modules |= dict.fromkeys(_ABSENT)  # type: ignore[arg-type]
        noted = _Noted()
        pytest.main(["-q", "--tb=no", "--maxfail=5", "-p", "no:cacheprovider", *tests], plugins=[noted])
        told.write_text(json.dumps([list(dict.fromkeys(noted.failed)), noted.passed]))
        os._exit(0)
    os.waitpid(child, 0)
    failed, passed = json.loads(told.read_text()) if told.is_file() else ([], 0)
    return failed, passed


def mutants(package: str, number: int) -> Iterator[dict[str, object]]:
    """Bugs of a package, drawn by its name; at most one a line. A bug is kept if some tests fail, and some pass."""
    rng = random.Random(package)
    code = code_of(package)
    found = [(path, *each) for path in sorted(code) if tests_for(package, path) for each in edits(code[path])]
    rng.shuffle(found)
    kept, lines, sound = 0, set(), {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for path, content in {**tests_of(package), **code}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
        for path, kind, first, last, new in found:
            source = code[path]
            line = source.count("\n", 0, first) + 1
            if kept >= number:
                return
            if (path, line) in lines:
                continue
            lines.add((path, line))
            tests = tests_for(package, path)
            if tuple(tests) not in sound:
                sound[tuple(tests)] = failing(folder, tests)
            if sound[tuple(tests)][0] or not sound[tuple(tests)][1]:
                continue
            (folder / path).write_bytes((source[:first] + new + source[last:]).encode())
            fails, passes = failing(folder, tests)
            (folder / path).write_bytes(source.encode())
            if not fails or not passes:
                continue
            kept += 1
            yield {
                "id": f"{package}/{Path(path).stem}-{line}-{kind}",
                "package": package, "path": path, "kind": kind, "line": line,
                "first": first, "old": source[first:last], "new": new,
                "tests": tests, "fails": fails,
            }  # fmt: skip


if __name__ == "__main__":
    wanted = int(sys.argv[1])
    for name in sys.argv[2:] or PACKAGES:
        with (HERE / f"mutants-{name}.jsonl").open("w") as file:
            for each in mutants(name, wanted):
                file.write(json.dumps(each) + "\n")
                file.flush()
                print(each["id"], len(each["fails"]), flush=True)  # type: ignore[arg-type]
