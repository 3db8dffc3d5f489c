"""Code for other interpreters (`/tools`): its oldest Python, its types, and what its start imports."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentrl.sandbox.namespace import rootfs
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.sandbox.toolbox.compiling import COMPILED
from agentrl.types.sandbox import SandboxSpec

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"
FILES = sorted(TOOLS.rglob("*.py"))


def promised() -> dict[str, tuple[int, int]]:
    """The oldest Python of each folder or file, as the table says."""
    rows = re.findall(r"^\| `([\w/.]+)` \|.*\| (3)\.(\d+) \|.*\|$", (TOOLS / "README.md").read_text(), re.MULTILINE)
    return {name: (int(major), int(minor)) for name, major, minor in rows}


def oldest(file: Path) -> tuple[int, int]:
    """The oldest Python that a file promises to run on."""
    path = file.relative_to(TOOLS)
    table = promised()
    return table.get(str(path)) or table[path.parts[0]]


def test_the_table_has_every_file() -> None:
    assert {oldest(file) for file in FILES} == {(3, 9), (3, 10), (3, 11)}
    assert all((TOOLS / name).exists() for name in promised())


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TOOLS)))
def test_a_file_runs_on_its_oldest_python(file: Path) -> None:
    import vermin

    minimum = vermin.detect(file.read_text())[1]
    assert minimum is not None
    assert minimum <= oldest(file)


KINDS = {"str", "bytes", "int", "float", "bool", "list", "dict", "set", "tuple", "object", "type"}


def evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """What runs of a file: all but annotations, and what stands below TYPE_CHECKING."""
    checking = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    skipped = {"annotation", "returns"} | ({"body"} if checking else set())
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in skipped:
                yield from evaluated(child)


def is_kind(node: ast.AST) -> bool:
    """Returns True for an operand of a union of types."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return (isinstance(node, ast.Name) and node.id in KINDS) or (isinstance(node, ast.Constant) and node.value is None)


@pytest.mark.parametrize("file", [file for file in FILES if oldest(file) < (3, 10)], ids=lambda file: file.stem)
def test_unions_stand_in_annotations_alone(file: Path) -> None:
    """`X | None` does not exist in Python 3.9, which vermin overlooks."""
    tree = ast.parse(file.read_text())
    unions = [node for node in evaluated(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    assert [node.lineno for node in unions if is_kind(node.left) or is_kind(node.right)] == []
    annotated = any(isinstance(node, ast.FunctionDef) and node.returns for node in ast.walk(tree))
    assert not annotated or any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)


def test_types_of_every_file_are_checked() -> None:
    config = configparser.ConfigParser()
    config.read(TOOLS / "mypy.ini")
    checked = [name.strip().replace("$MYPY_CONFIG_FILE_DIR", "tools") for name in config["mypy"]["files"].split(",")]
    main = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert config["mypy"]["strict"] == "true"
    assert main["strict"]
    checked += main["files"]
    folders = {str(file.relative_to(ROOT).parents[-3]) for file in FILES}
    assert folders <= {*checked}


@pytest.mark.parametrize("file", sorted((TOOLS / "toolbox").glob("*.py")), ids=lambda file: file.stem)
def test_what_compiles_the_toolbox_leaves_out_the_import_and_the_docstrings(file: Path) -> None:
    names: dict[str, Any] = {}
    exec(COMPILED, names)
    code = names["compiled"](file.read_bytes(), file.name)
    assert b"__future__" in file.read_bytes()
    assert b"__future__" not in code
    (first, *_) = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()
    assert first.encode() not in code


IMPORTS = {"jobs", "processes", "resource", "select", "time", "_ctypes", "_socket"}
"""Modules that the toolbox imports. Each takes time at the start of every sandbox; `time` may be built in."""


def imported(log: str) -> set[str]:
    """The modules in a report of `-X importtime`."""
    return {line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time:")}


@pytest.mark.slow
async def test_the_toolbox_imports_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is run whole: a command, sessions, files, health."""
    log, start, python = tmp_path / "imports", subprocess.Popen, list[str]()

    def logged(argv: list[str], **more: Any) -> subprocess.Popen[bytes]:
        if not any(word.endswith("/toolbox.pyc") for word in argv):
            return start(argv, **more)
        at = argv.index("-I")
        python.append(argv[at - 1])
        with log.open("wb") as file:
            return start([*argv[:at], "-X", "importtime", *argv[at:]], **{**more, "stderr": file})

    backend = NamespaceBackend()
    monkeypatch.setattr(rootfs.subprocess, "Popen", logged)
    try:
        sandbox = await backend.create(SandboxSpec())
        assert (await sandbox.exec("echo a")).text == "a\n"
        assert (await (await sandbox.session()).run("echo b")).text == "b\n"
        await sandbox.write("file", b"c" * (3 << 20))
        assert len(await sandbox.read("file")) == 3 << 20
        assert [entry.name for entry in await sandbox.list(".")] == ["file"]
        await sandbox.health()
    finally:
        await backend.close()
    bare = [*python, "-I", "-S", "-B", "-X", "utf8", "-X", "importtime", "-c", "pass"]
    alone = subprocess.run(bare, capture_output=True, text=True, check=True).stderr
    own = imported(log.read_text()) - imported(alone)
    assert {"jobs", "processes"} <= own <= IMPORTS


def loaded(name: str) -> ModuleType:
    """A file of the toolbox as a module."""
    spec = importlib.util.spec_from_file_location(f"of_tools_{name}", TOOLS / "toolbox" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ANNOTATED = "def f(x: int) -> None: ...\n"


def test_cells_of_a_kernel_get_no_future_statement() -> None:
    """`compile` hands those of its caller on, unless it is told not to."""
    assert loaded("kernel").run(ANNOTATED + "f.__annotations__['x']", "<cell>", {}) == "v<class 'int'>"


@pytest.mark.slow
def test_tested_code_gets_no_future_statement(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(ANNOTATED)
    text = "assert f.__annotations__['x'] is int\ndef g(x: int) -> None: ...\nassert g.__annotations__['x'] is int"
    job = {"word": "proven", "foreign": [], "kind": "statements", "text": text, "entry": "code.py", "stub": False}
    done = subprocess.run(
        [sys.executable, TOOLS / "verify" / "agentrl_proof.py"],
        input=json.dumps(job), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "\nproven\n", done.stderr


def compiling(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of `compile`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "compile":
            yield node


@pytest.mark.slow  # parses all files
def test_no_file_lends_its_future_statements() -> None:
    for file in FILES:
        for call in compiling(ast.parse(file.read_text())):
            assert "dont_inherit" in {keyword.arg for keyword in call.keywords}, f"{file}:{call.lineno}"
            (value,) = [keyword.value for keyword in call.keywords if keyword.arg == "dont_inherit"]
            assert isinstance(value, ast.Constant)
            assert value.value is True
