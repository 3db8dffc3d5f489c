"""`make test-newest`: which versions are new, which are beyond a bound, and what is not tried."""

from __future__ import annotations

from pathlib import Path

from packaging.requirements import Requirement

from scripts import newest
from scripts.wheel import LIGHT, PROJECT, promised


def test_a_version_beyond_a_bound_is_named() -> None:
    asked = {"lib": Requirement("lib>=1,<2"), "old": Requirement("old>=1"), "same": Requirement("same==3")}
    lines = newest.compared(asked, {"lib": "2.1", "old": "5", "same": "3", "deep": "8"}, {"lib": "1.5", "old": "4"})
    assert lines == ["newest: lib 2.1, pinned 1.5, beyond lib<2,>=1", "newest: old 5, pinned 4"]


def test_all_that_is_asked_for_is_tried_or_said_to_be_held() -> None:
    asked = newest.wanted()
    assert {"transformers", "vllm", "torch", "ruamel-yaml", "pytest"} <= asked.keys()
    assert "agentrl-framework" not in asked
    assert newest.HELD.keys() <= asked.keys()


def test_pins_are_those_of_this_python(tmp_path: Path) -> None:
    pins = tmp_path / "pins.txt"
    pins.write_text(
        "# a note\na_b==1 ; python_full_version < '3'\na_b==2 ; python_full_version >= '3'\nc[d]==4.0+cpu\n"
    )
    assert newest.versions(pins) == {"a-b": "2", "c": "4.0+cpu"}


def test_the_wheel_is_tried_on_what_is_promised() -> None:
    assert promised()[0] == PROJECT["requires-python"].removeprefix(">=")
    assert {*LIGHT} < PROJECT["optional-dependencies"].keys()
