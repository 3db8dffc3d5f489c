"""The script that answers tasks of guests, and the list of tasks that a guest writes."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentrl.integrations import guests
from agentrl.types.task import Task


@pytest.mark.parametrize(
    ("data", "text"),
    [({"answer": "4"}, "4"), ({"answer": ["4", "four"]}, "4"), ({"answer": [7]}, "7"), ({"answer": []}, ""), ({}, "")],
)
def test_the_oracle_gives_the_first_answer_of_the_data_set(data: dict[str, Any], text: str) -> None:
    (said,) = guests.oracle(Task.of("t", "2+2?", **data), random.Random(0))
    assert said.text == text


def test_what_a_guest_declares_of_its_rewards_is_kept_with_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"id": "a", "instruction": "x", "declares": {"bounds": [0, 1]}, "data": {"answer": "4"}},
        {"id": "b", "instruction": "y"},
    ]

    def run(words: list[str], **settings: Any) -> subprocess.CompletedProcess[bytes]:
        listed = "\n".join(map(json.dumps, rows)).encode()
        return subprocess.CompletedProcess(words, 0, stdout=listed, stderr=b"")

    monkeypatch.setattr(subprocess, "run", run)
    first, second = guests.tasks("verifiers", tmp_path, {"id": "sums"})
    assert first.data["guest"]["declares"] == {"bounds": [0, 1]}
    assert (first.data["answer"], first.data["guest"]["index"]) == ("4", 0)
    assert "declares" not in second.data["guest"]
