"""The certificate of an environment: findings, and hashes of the checked recipe and code."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import msgspec

from agentrl.api.certify.findings import Finding
from agentrl.config.recipe import Recipe
from agentrl.types.errors import StoreError

_SECTIONS = {"tasks", "agent", "tools", "sandbox", "rewards", "gate", "reward_of", "limits"}
_SAID = (".certificate.json", ".md", "curve.png", ".pyc")
"""Ends of names of files that make no difference."""
MOST_FILES = 10_000
"""Files of a folder that are read, the first by name: a recipe may lie in a home folder."""


@dataclass(frozen=True)
class Certificate:
    """Result of `agentrl env check`.

    Attributes:
        certified: True if no check failed.
        tasks: number of tasks that the oracle played.
        threshold: the reward, or value of `success`, from which an episode counts as a success.
        environment: hash of the recipe's sections of the environment, and of the files in its folder.
        version: of agentrl.
    """

    recipe: str
    certified: bool
    tasks: int
    threshold: float
    date: str
    version: str
    environment: str
    findings: list[Finding]

    def store(self, folder: Path) -> Path:
        """Writes `NAME.certificate.json`.

        Raises:
            StoreError: the folder cannot be written to.
        """
        path = path_of(self.recipe, folder)
        try:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        except OSError as error:
            raise StoreError(
                f"cannot be written: {error.strerror}", place=str(path), remedy="copy the recipe"
            ) from error
        return path


def path_of(name: str, folder: Path) -> Path:
    """The file of the certificate of the recipe `name`."""
    return folder / f"{name}.certificate.json"


def environment_of(recipe: Recipe) -> str:
    """Returns a hash of the certified environment: sections of the recipe, and code and data in its folder.

    Excludes keys with their default, so that a new key of recipes changes no hash; recipes (`*.yaml` directly in the
    folder), pages (`*.md`), runs, and names that begin with a dot; of Python files also docstrings and comments.
    """
    paths = islice(_files(recipe.base), MOST_FILES)
    files = {path.relative_to(recipe.base).as_posix(): _digest(path) for path in paths}
    sections = recipe.model_dump_json(include=_SECTIONS, exclude_defaults=True)
    described = {"recipe": json.loads(sections), "files": files}
    if recipe.success is not None:
        described["success"] = recipe.success
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        if path.suffix != ".py":
            return hashlib.file_digest(file, "sha256").hexdigest()
        source = file.read()
    with suppress(UnicodeDecodeError, SyntaxError, tokenize.TokenError):  # a broken file fails where it is imported
        source = _without_words(source.decode()).encode()
    return hashlib.sha256(source).hexdigest()


def _without_words(source: str) -> str:
    """Returns a Python file without its docstrings, comments and empty lines.

    Raises:
        SyntaxError, tokenize.TokenError: the file is not Python.
    """
    lines = source.splitlines(keepends=True)
    words: list[tokenize.TokenInfo] = []
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            words.append(token)
        elif token.type == tokenize.NEWLINE:
            words += statement if all(part.type == tokenize.STRING for part in statement) else []
            statement = []
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            statement.append(token)
    for token in sorted(words, key=lambda word: word.start, reverse=True):
        (first, begin), (last, end) = token.start, token.end
        lines[first - 1 : last] = [lines[first - 1][:begin] + lines[last - 1][end:]]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        if Path(root) != folder and "run.json" in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
        for name in sorted(names):
            path = Path(root, name)
            recipe = path.parent == folder and path.suffix in (".yaml", ".yml")
            if name[0] != "." and not name.endswith(_SAID) and not recipe and path.is_file():
                yield path


def told(recipe: Recipe) -> str | None:
    """Summarises a recipe's certificate in one line; None without a certificate.

    Raises:
        StoreError: the file is not a certificate.
    """
    path = path_of(recipe.name, recipe.base)
    if not path.is_file():
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Certificate)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"is not a certificate: {error}", place=str(path), remedy="agentrl env check --store"
        ) from error
    verdict = "certified" if found.certified else "not certified"
    same = found.environment == environment_of(recipe)
    return f"{verdict} on {found.tasks} tasks, {found.date[:10]}{'' if same else ', before the environment changed'}"
