"""Tests that can notice a fault in a file, those first that are likely to, and cheap."""

from __future__ import annotations

import ast
import json
import sqlite3
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from scripts.copies import room_of
from scripts.mutants.mutations import Mutation


@dataclass(frozen=True)
class Choice:
    """Test files in their order, and ids of tests, files and folders to which they are restricted.

    Attributes:
        only: all tests of the files if it is None.
    """

    files: tuple[str, ...]
    only: frozenset[str] | None


class Suite:
    """The test files of a checkout, by what they import.

    Args:
        costs: seconds of tests or files, by their ids.
    """

    def __init__(self, root: Path, costs: dict[str, float]) -> None:
        self.files = [str(file.relative_to(root)) for file in sorted((root / "tests").rglob("test_*.py"))]
        self._tests = _importers(root, "tests")
        self._rooms = _importers(root, "agentrl")
        self._costs: dict[str, float] = defaultdict(float)
        for test, seconds in costs.items():
            self._costs[test.split("::")[0]] += seconds

    def of(self, path: str) -> list[str]:
        """Test files of the rooms that import a file of agentrl/, the likely and then the cheap ones first.

        The rooms: its own, those that import it directly, and other folders of tests with a file that does.
        """
        module = ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
        direct = self._tests[module]
        own = f"tests/{room_of(path)}"
        rooms = {own, *(f"tests/{room_of(file)}" for file in self._rooms[module])}
        rooms |= {_folder(file) for file in direct if _folder(file) != "tests"}

        def rank(file: str) -> tuple[int, float, str]:
            near = file in direct or _folder(file) == own
            likely = (near and Path(path).stem in Path(file).stem, file in direct, _folder(file) == own, True)
            return likely.index(True), self._costs[file], file

        return sorted((file for file in self.files if _folder(file) in rooms), key=rank)

    def ordered(self, path: str, files: set[str]) -> list[str]:
        """The files among these that exist: those of the rooms first, the others by their cost."""
        rooms = self.of(path)
        others = sorted(files & {*self.files} - {*rooms}, key=lambda file: (self._costs[file], file))
        return [file for file in rooms if file in files] + others


def seconds_of(path: Path) -> dict[str, float]:
    """Reads the seconds of tests or files: JSON, by id a number, or an object with `cpu`."""
    noted = json.loads(path.read_text())
    return {test: one["cpu"] if isinstance(one, dict) else one for test, one in noted.items()}


def contexts(database: Path, mutation: Mutation) -> frozenset[str]:
    """Selects the tests that run the lines of a fault, by the data of `room_coverage.py`.

    Empty if that is not known: the lines run when a module is imported, or in a process without a test.
    """
    if mutation.at_import:
        return frozenset()
    from coverage.numbits import num_in_numbits

    query = """
        select context, numbits from line_bits join context on context.id = context_id join file on file.id = file_id
        where path = ? and context not in ('', 'tests')"""
    with sqlite3.connect(database) as data:
        rows = data.execute(query, (mutation.key.path,)).fetchall()
    return frozenset(context for context, bits in rows if any(num_in_numbits(line, bits) for line in mutation.lines))


def choose(tests: Suite, mutation: Mutation, database: Path | None) -> Choice:
    """The tests for a fault: those of the rooms that import its file; with coverage, those that run its lines.

    If none of the rooms' tests runs its lines, any that does.
    """
    rooms = tests.of(mutation.key.path)
    only = contexts(database, mutation) if database else frozenset()
    if not only:
        return Choice(tuple(rooms), None)
    files = {file for file in tests.files if _touched(file, only)}
    inside = [file for file in rooms if file in files]
    return Choice(tuple(inside or tests.ordered(mutation.key.path, files)), only)


def _touched(file: str, only: frozenset[str]) -> bool:
    places = {file, *map(str, Path(file).parents)}
    return not places.isdisjoint(only) or any(context.startswith(f"{file}::") for context in only)


def _folder(file: str) -> str:
    return "/".join(Path(file).parts[:2]) if len(Path(file).parts) > 2 else "tests"


def _importers(root: Path, top: str) -> dict[str, set[str]]:
    """Files below a folder by each module that they import."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted((root / top).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            for module in _imported(node):
                found[module].add(str(file.relative_to(root)))
    return found


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return []
