"""Errors about episodes that a run lacks."""

from __future__ import annotations

import pytest

from agentrl.api.run_dirs import _joined

AGAIN = "fix the cause and run the same command again: it adds the missing episodes"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("", AGAIN),
        ("start the server", f"start the server\n     {AGAIN}"),
        (
            "fix the function and run the same command again",
            "fix the function and run the same command again: it adds the missing episodes",
        ),
    ],
)
def test_one_remedy_of_two_that_say_the_same(own: str, expected: str) -> None:
    assert _joined(own, AGAIN) == expected
