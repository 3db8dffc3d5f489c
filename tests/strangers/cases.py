"""The corpus of strangers: what other people's models, programs, servers and rows really send, as data files.

`tests/strangers/KIND/*.yaml` has a list `cases`. Each has a `name` that says the trap, `from` (the public report, or
the template of a family of models), and keys of its kind. The texts are ours: facts and forms, nothing copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent

Case = Mapping[str, Any]


class Loader(yaml.CSafeLoader):
    """Refuses keys that are there twice, and those that YAML takes for something other than a text (`on`)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping with keys that are different texts."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if wrong := [key for key in keys if not isinstance(key, str) or keys.count(key) > 1]:
            raise ValueError(f"{node.start_mark}: the key {wrong[0]!r} is no text, or there twice")
        return super().construct_mapping(node, deep=deep)


def files() -> list[Path]:
    """All files with cases."""
    return sorted(HERE.glob("*/*.yaml"))


def cases(path: Path) -> list[dict[str, Any]]:
    """The cases of a file, with what all kinds have in common checked.

    Raises:
        ValueError: there is anything but cases, or a case has no name or no source, or a name that is there twice.
    """
    held = read(path)
    if set(held) != {"cases"} or not held["cases"]:
        raise ValueError(f"{path}: it must hold `cases` and nothing else")
    found: list[dict[str, Any]] = held["cases"]
    names = [case.get("name") for case in found]
    for case, name in zip(found, names, strict=True):
        if not name or not case.get("from") or names.count(name) > 1:
            raise ValueError(f"{path}: {name!r}: a case needs a name of its own, and `from`")
    return found


def read(path: Path) -> dict[str, Any]:
    """A file of this corpus."""
    held: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader)
    return held


def played(kind: str, required: Collection[str], optional: Collection[str]) -> list[Any]:
    """The cases of a kind as parameters of a test: the file's stem, and the case.

    Raises:
        ValueError: a case has a key that its kind does not have, or lacks one.
    """
    found = []
    for path in sorted((HERE / kind).glob("*.yaml")):
        for case in cases(path):
            keys = set(case) - {"name", "from"}
            if wrong := (keys - set(required) - set(optional)) | (set(required) - keys):
                raise ValueError(f"{path}: {case['name']!r}: the key {min(wrong)!r} is unknown, or missing")
            found.append(pytest.param(path.stem, case, id=f"{path.stem}: {case['name']}"))
    return found
