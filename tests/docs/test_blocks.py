"""Every code block of every page: executed, or marked with the reason why not."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.loader import load_recipe
from tests.command import commands
from tests.docs.blocks import BLOCKS, FENCE, PAGES, ROOT, Block

KINDS = {"python", "yaml", "bash", "json", "toml", "html", "text"}
"""`text` is what a program shows, or a drawing: no code."""

TESTS = {path.name: path.read_text() for path in (ROOT / "tests" / "docs").glob("test_*.py")}
PROGRAMS = (
    "pip install",
    "pip wheel",
    "pytest ",
    "ssh ",
    "python -m pip install",
    "apt-get install",
    "npm install",
    "python -m http.server",
    "python -m server.app",
    "cd ",
    "hf ",
)
"""Commands of others, whose own documentation holds for them."""

RUN = [block for block in BLOCKS if block.no_run is None]


def of(*kinds: str) -> Any:
    chosen = [block for block in RUN if block.kind in kinds]
    return pytest.mark.parametrize("block", chosen, ids=[block.place for block in chosen])


def has_test(block: Block) -> bool:
    """True if a test of its own executes the blocks of the page."""
    return any(f'"{block.page.name}"' in text for text in TESTS.values())


def test_every_block_names_what_it_is() -> None:
    assert [f"{block.place}: {block.kind!r}" for block in BLOCKS if block.kind not in KINDS] == []


INDENTED = re.compile(r"(?:\A|(?<=\n\n))((?: {4}\S.*\n)+)")


def test_no_block_is_hidden_by_its_indentation() -> None:
    """docs/architecture.md draws with indented lines; elsewhere an indented block would escape this test."""
    for page in PAGES:
        text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())
        for match in INDENTED.finditer(text):
            before = text[: match.start()].rstrip().splitlines()[-1]
            listed = re.match(r"\s*([-*]|\d+\.|  )", before)
            assert listed or page.name == "architecture.md", f"{page.name}: {match[1]}"


def test_reasons_are_reasons() -> None:
    assert [block.place for block in BLOCKS if block.no_run is not None and len(block.no_run.split()) < 3] == []


def test_no_block_is_read_by_none() -> None:
    """HTML is served by the test of its page; everything else is executed below."""
    assert [block.place for block in RUN if block.kind == "html" and not has_test(block)] == []


@of("yaml")
def test_recipes_and_their_parts_are_read(block: Block, tmp_path: Path) -> None:
    for number, part in enumerate(alternatives(block.text)):
        name = "" if re.search(r"^name:", part, re.MULTILINE) else "name: page\n"
        path = tmp_path / f"{number}.yaml"
        path.write_text(name + part)
        load_recipe(path)


def alternatives(text: str) -> list[str]:
    """The block, or its parts where a key stands several times: one recipe for each time."""
    if re.search("^---$", text, re.MULTILINE):
        return re.split("^---$", text, flags=re.MULTILINE)
    parts = re.split(r"^(?=\w+:)", text, flags=re.MULTILINE)
    keys = Counter(part.split(":")[0] for part in parts)
    return [part for part in parts if part.strip()] if max(keys.values()) > 1 else [text]


@of("python")
def test_python_is_executed(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page before it come first. What a test of the page executes is compiled here."""
    before = [each for each in RUN if each.page == block.page and each.kind == "python" and each.line < block.line]
    code = compile(block.text, block.place, "exec")
    if has_test(block):
        return
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    for each in before:
        exec(compile(each.text, each.place, "exec"), namespace)
    exec(code, namespace)


@of("json")
def test_json_is_read(block: Block) -> None:
    try:
        json.loads(block.text)
    except ValueError:
        assert [json.loads(line) for line in block.text.splitlines()]


@of("toml")
def test_toml_is_read(block: Block) -> None:
    assert tomllib.loads(block.text)


@of("bash")
def test_commands_exist_with_their_options(block: Block) -> None:
    known = commands()
    for line in block.text.replace("\\\n", " ").splitlines():
        for command in re.split(r" && | \| ", line):
            words = shlex.split(command, comments=True)
            if not words or command.strip().startswith(PROGRAMS):
                continue
            assert not unknown(words, known), line


def unknown(words: list[str], known: dict[str, Any]) -> str | None:
    """Describes the fault of a command line; None: there is none."""
    while "=" in words[0]:  # the environment
        words = words[1:]
    if words[0] == "torchrun":  # of which the rest is a command of ours
        words = ["agentrl", *words[words.index("agentrl.cli") + 1 :]] if "agentrl.cli" in words else []
    if "--" in words:  # the rest is for another program
        words = words[: words.index("--")]
    match words:
        case [] | ["jq" | "ray", *_]:
            return None
        case ["make", *rest]:
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            return next((word for word in rest if "=" not in word and word not in targets), None)
        case ["python" | "python3", "-m", module, *_]:
            path = ROOT / module.replace(".", "/")
            return None if path.is_dir() or path.with_suffix(".py").is_file() else module
        case ["agentrl", *rest]:
            name = next((" ".join(rest[:n]) for n in (2, 1) if " ".join(rest[:n]) in known), None)
            if name is None:
                return " ".join(rest[:2])
            options = {option for each in known[name].params for option in [*each.opts, *each.secondary_opts]}
            given = [re.sub(r"[\[\]]", "", word).split("=")[0] for word in rest if word.lstrip("[").startswith("-")]
            return next((word for word in given if word not in {*options, "--help"}), None)
    return words[0]
