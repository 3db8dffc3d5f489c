"""The corpus as a whole: its size, where its cases come from, and that none is there twice."""

from __future__ import annotations

import json
from collections import Counter

from agentrl.chat.formats.registry import FORMATS

from .cases import HERE, cases, files


def test_the_corpus_is_large() -> None:
    assert sum(len(cases(path)) for path in files()) >= 300


def test_every_format_has_cases_of_its_own() -> None:
    counts = {path.stem: len(cases(path)) for path in files() if path.parent.name == "replies"}
    assert set(counts) == set(FORMATS.built_in)
    assert min(counts.values()) >= 5, counts


def test_no_input_is_there_twice() -> None:
    for path in files():
        said = Counter(json.dumps({k: v for k, v in case.items() if k not in ("name", "from")}) for case in cases(path))
        assert said.most_common(1)[0][1] == 1, (path, said.most_common(1))


def test_every_file_is_of_a_kind_that_is_played() -> None:
    kinds = {path.stem.removeprefix("test_") for path in HERE.glob("test_*.py")}
    assert {path.parent.name for path in files()} <= kinds
