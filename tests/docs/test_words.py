"""The English of docstrings and comments: openings, and words that readers of the field stumble over.

The rates of inspect_ai 0.3.285 (863,000 words of docstrings and comments) bound ours: twice each.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("agentrl", "tools") for path in (ROOT / folder).rglob("*.py"))
QUESTION = re.compile(r"(What|Who|How|Where|Whether|That|Which|When|As|Whose|Whom)\b")
RELATIVE = re.compile(r"The \w+( \w+)? (that|which|who|whose)\b")
RATES = {  # a word, and how often inspect_ai has it in 100,000
    r"beside": 6.0,
    r"(stand|stands|stood|standing)": 9.4,
    r"(tell|tells|told|telling)": 16.6,
    r"(say|says|said)": 18.8,
    r"(keep|keeps|kept)": 141.0,
    r"(is|are) no": 34.2,
}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[1] if parts[0] == "agentrl" and len(parts) > 2 else parts[0]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """The module and all statements in it. `ast.walk` would enter expressions, which takes ten times as long."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from statements(inner)


@cache
def docstrings() -> list[tuple[str, str, str]]:
    """Room, file and text of each."""
    found = []
    for path in FILES:
        for node in statements(ast.parse(path.read_text())):
            documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if documented and (text := ast.get_docstring(node)):
                found.append((room_of(path), str(path.relative_to(ROOT)), text))
    return found


def prose(source: str) -> Iterator[str]:
    """The docstrings, of attributes too, and comments of a file."""
    for node in statements(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@pytest.mark.slow  # parses all files
def test_docstrings_open_with_a_verb_or_a_noun() -> None:
    rooms: dict[str, list[str]] = {}
    for room, file, text in docstrings():
        rooms.setdefault(room, []).append(f"{file}: {text.splitlines()[0]}" if QUESTION.match(text) else "")
    bad = {room: [*filter(None, lines)] for room, lines in rooms.items()}
    assert sum(map(len, bad.values())) <= 0.02 * len(docstrings()), bad
    for room, lines in rooms.items():
        assert len(lines) < 20 or len(bad[room]) <= 0.03 * len(lines), bad[room]


def test_few_docstrings_open_with_the_x_that() -> None:
    bad = [f"{file}: {text.splitlines()[0]}" for _, file, text in docstrings() if RELATIVE.match(text)]
    assert len(bad) <= 0.04 * len(docstrings()), bad


@cache
def words() -> str:
    return " ".join(text for path in FILES for text in prose(path.read_text()))


@pytest.mark.parametrize("word", RATES)
@pytest.mark.slow  # parses all files
def test_words_are_no_more_than_twice_as_frequent_as_inspect_ais(word: str) -> None:
    of = len(re.findall(r"[A-Za-z']+", words()))
    rate = 1e5 * len(re.findall(rf"\b{word}\b", words())) / of
    assert rate <= 2 * RATES[word], f"{word}: {rate:.1f} in 100,000 words"


GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def test_the_glossary_names_what_is_there() -> None:
    """Names in `code` of the first column are used, and each row has all columns."""
    rows = [line.strip("|").split("|") for line in GLOSSARY.splitlines() if line.startswith("| ")]
    assert {len(row) for row in rows} == {5}
    code = "\n".join(path.read_text() for path in FILES)
    for name in {name for row in rows for name in re.findall(r"`(\w+)", row[0])} - {"agentrl"}:
        assert re.search(rf"\b{name}\b", code), name
