"""The house: floors and circles of rooms (the import contract of pyproject.toml), and how large files and classes may
grow."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES, MOST_FLOORS, MOST_METHODS = 600, 11, 30


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Checks the contracts of the project on the package in a folder."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [*command, "--config", str(ROOT / "pyproject.toml")], cwd=folder, env=env, capture_output=True, text=True
    )


def floors() -> list[list[str]]:
    """The rooms of each floor, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["id"] == "floors"]
    return [layer.split(" | ") for layer in layers]


@pytest.mark.slow
def test_the_import_contract_is_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("low", "line"),
    [
        ("types/seeds.py", "from agentrl.training import loop"),
        ("estimators/table.py", "import agentrl.commands.look"),
        ("rollouts/specs.py", "from agentrl.tools.builtin import shell"),
        ("store/lines.py", "if __import__('typing').TYPE_CHECKING:\n    from agentrl.store.run_dir import RunDir"),
    ],
)
def test_an_upward_import_or_a_circle_breaks_the_contract(tmp_path: Path, low: str, line: str) -> None:
    shutil.copytree(ROOT / "agentrl", tmp_path / "agentrl", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "agentrl" / low).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint(tmp_path)
    assert done.returncode != 0
    assert low.split("/")[0] in done.stdout


def imports_of(path: Path) -> set[str]:
    """The packages that a file imports, wherever in it."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.split(".")[0] for name in names}


@pytest.mark.slow  # parses all files
def test_aiohttp_is_imported_where_the_page_says_why() -> None:
    """Everything else that speaks HTTP goes through the one transport."""
    page = (ROOT / "docs" / "libraries.md").read_text()
    (table,) = re.findall(r"^(\| file .*?)\n\n", page, re.DOTALL | re.MULTILINE)
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w/]+\.py)`", row.split("|")[1])}
    files = [*(ROOT / "agentrl").rglob("*.py")]
    found = {str(path.relative_to(ROOT / "agentrl")): imports_of(path) for path in files}
    assert {name for name, imports in found.items() if "aiohttp" in imports} == named
    others = {"httpx", "httpcore", "requests", "urllib3"}
    assert {name: imports & others for name, imports in found.items() if imports & others} == {
        "sandbox/docker/engine.py": {"requests"}  # of the docker SDK, which speaks to a socket of this machine
    }
    pools = {name for name, imports in found.items() if "httpcore2" in imports}
    assert pools == {"types/http/transport.py", "types/http/pool.py"}


@pytest.mark.parametrize("name", ["AsyncHTTPTransport", "HTTPTransport", "urlopen", "mounts=", "proxy="])
def test_no_client_goes_around_the_transport(name: str) -> None:
    files = [path for path in (ROOT / "agentrl").rglob("*.py") if "httpx2" in path.read_text()]
    assert len(files) > 3
    assert [path.name for path in files if name in path.read_text()] == []
    for path in files:
        text = path.read_text()
        assert text.count("httpx2.AsyncClient(") == text.count("transport=Transport("), path


def test_no_file_is_too_long() -> None:
    long = {
        str(file.relative_to(ROOT)): count
        for file in (ROOT / "agentrl").rglob("*.py")
        if (count := len(file.read_text().splitlines())) > MOST_LINES
    }
    assert not long


@cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    """The classes of the package, each with its file."""
    files = sorted((ROOT / "agentrl").rglob("*.py"))
    return [(str(file.relative_to(ROOT)), node) for file in files for node in _classes_in(ast.parse(file.read_text()))]


def _classes_in(node: ast.AST) -> Iterator[ast.ClassDef]:
    for inner in ast.iter_child_nodes(node):  # `ast.walk` would enter expressions, which takes ten times as long
        if isinstance(inner, ast.ClassDef):
            yield inner
        if isinstance(inner, ast.stmt):
            yield from _classes_in(inner)


def is_method(node: ast.stmt) -> bool:
    """True for functions of a class but its properties, which callers read as attributes."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return not any(isinstance(each, ast.Name) and "property" in each.id for each in node.decorator_list)


@pytest.mark.slow  # parses all files
def test_no_class_has_too_many_methods() -> None:
    counts = {f"{file}:{node.name}": sum(map(is_method, node.body)) for file, node in classes()}
    assert {name: count for name, count in counts.items() if count > MOST_METHODS} == {}


@pytest.mark.slow  # parses all files
def test_a_public_class_name_means_one_thing() -> None:
    """Those inside of a class, as the `Settings` of an engine, are named with it."""
    files: dict[str, list[str]] = {}
    nested = {id(inner) for _, node in classes() for inner in _classes_in(node)}
    for file, node in classes():
        if not node.name.startswith("_") and id(node) not in nested:
            files.setdefault(node.name, []).append(file)
    assert {name: found for name, found in files.items() if len(found) > 1} == {}


def test_the_floors_are_few_and_drawn() -> None:
    assert len(floors()) <= MOST_FLOORS
    page = (ROOT / "docs" / "architecture.md").read_text()
    (drawn,) = re.findall(r"<!-- floors -->\n\n((?:    .*\n)+)", page)
    assert [line.split() for line in drawn.splitlines()] == floors()


PAGE = (ROOT / "docs" / "code-map.md").read_text()
TABLE, ROUTES = PAGE.split("## Where is ...?")[1].split("## Routes")
MOST_ROWS = 30


def rows() -> list[list[str]]:
    """The table "Where is ...?": question, where, and a phrase of the code there."""
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in TABLE.splitlines() if "`" in line]


def defined(name: str, text: str) -> bool:
    return bool(re.search(rf"^\s*(async def|def|class) {re.escape(name)}\b|^{re.escape(name)}\b.*=", text, re.M))


def test_the_newcomer_reads_a_short_table() -> None:
    assert len(rows()) <= MOST_ROWS


@pytest.mark.parametrize(("question", "where", "phrase"), rows())
def test_what_the_newcomer_looks_for_is_where_the_table_says(question: str, where: str, phrase: str) -> None:
    """An answer: `path` (`name`, `name`) and the like, at most two paths, and what is read there."""
    paths = re.findall(r"`((?:agentrl|tools|docs|recipes|tests)/[^`]+)`", where)
    assert 1 <= len(paths) <= 2
    text = ""
    for path in paths:
        assert (ROOT / path).exists(), path
        text += (ROOT / path).read_text() if (ROOT / path).is_file() else ""
    assert [code for code in re.findall(r"`([^`]+)`", where) if "/" not in code and not defined(code, text)] == []
    assert phrase.strip("`") in text


@pytest.mark.parametrize("route", re.findall(r"^- \*\*(.+?)\*\*:", ROUTES, re.M))
def test_each_stop_of_a_route_is_there(route: str) -> None:
    (told,) = re.findall(rf"^- \*\*{re.escape(route)}\*\*:(.*?)(?=\n- |\Z)", ROUTES, re.M | re.S)
    stops = re.findall(r"`(agentrl/[^`]+)`\s+\(`(\w+)`", told)
    assert len(stops) >= 4
    assert [stop for stop in stops if not defined(stop[1], (ROOT / stop[0]).read_text())] == []
