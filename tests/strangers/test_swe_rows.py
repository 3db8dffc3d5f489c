"""Rows in the form of SWE-bench of other people's sets: what `agentrl recipe check` tells of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.recipe_check import check
from agentrl.types.errors import AgentRLError

RECIPE = """\
name: repairs
tasks: {jsonl: rows.jsonl, id: instance_id, prompt: "{problem_statement}", %s}
tools: [repository, shell]
rewards: {swe_tests: {}}
"""
DIFF = "diff --git a/tests/a.py b/tests/a.py\n--- a/tests/a.py\n+++ b/tests/a.py\n@@ -1 +1 @@\n-a\n+b\n"
ROW = {"instance_id": "acme__shop-1", "problem_statement": "It {breaks}.", "base_commit": "a" * 40, "test_patch": DIFF}
TEST = "tests/test_a.py::test_b"


def checked(folder: Path, row: dict[str, Any], more: str = "limit: 1") -> None:
    (folder / "rows.jsonl").write_text(json.dumps({**ROW, **row}) + "\n")
    (folder / "recipe.yaml").write_text(RECIPE % more)
    check(str(folder), [])


@pytest.mark.slow  # looks for a backend
@pytest.mark.parametrize(
    ("row", "more"),
    [
        ({"FAIL_TO_PASS": json.dumps([TEST]), "PASS_TO_PASS": "[]"}, "limit: 1"),  # SWE-bench
        ({"FAIL_TO_PASS": [TEST], "PASS_TO_PASS": []}, "limit: 1"),  # SWE-rebench, SWE-smith
        ({"fail_to_pass": [TEST]}, "fields: {FAIL_TO_PASS: fail_to_pass}"),
    ],
)
def test_rows_that_can_be_played(tmp_path: Path, row: dict[str, Any], more: str) -> None:
    checked(tmp_path, row, more)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"fail_to_pass": [TEST]}, r"(?s)names no test.*tasks.fields: \{FAIL_TO_PASS: COLUMN.*fail_to_pass"),
        ({"FAIL_TO_PASS": "[]"}, "(?s)acme__shop-1.*leave the row out"),
        ({"FAIL_TO_PASS": '["test_a (shop.Case)"]'}, "(?s)give pytest's ids"),
        ({"FAIL_TO_PASS": f"['{TEST}']"}, "(?s)as a list or as JSON"),
        ({"FAIL_TO_PASS": [TEST], "test_patch": "diff"}, "test_patch is no unified diff"),
        ({"FAIL_TO_PASS": [TEST], "base_commit": {"sha": "a"}}, "base_commit is"),
    ],
)
def test_rows_that_cannot_be_played_are_refused_before_any_episode(
    tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    with pytest.raises(AgentRLError, match=said):
        checked(tmp_path, row)
