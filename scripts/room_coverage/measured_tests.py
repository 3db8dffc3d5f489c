"""Context of each test in measured coverage, as a plug-in of pytest.

A context names what must be selected for a line to run:

    tests/room/test_file.py::test[id]   the call of a test, and its own fixtures
    tests/room/test_file.py             fixtures of a module or class
    tests/room                          fixtures of a folder or session
    (empty)                             imports and collection
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import measured  # type: ignore[import-not-found]
import pytest


class _Now:
    context = ""


def _switch(context: str) -> str:
    before, _Now.context = _Now.context, context
    measured.switch(context)
    return before


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _switch(_without_group(item))
    try:
        return (yield)
    finally:
        _switch("")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    wide = fixturedef.scope in ("package", "session")
    before = _switch(fixturedef.baseid if wide else request.node.nodeid.split("::")[0])
    try:
        return (yield)
    finally:
        _switch(before)


def _without_group(item: pytest.Item) -> str:
    """The id that the test has without pytest-xdist, which adds its group."""
    group = item.get_closest_marker("xdist_group")
    name = str(group.args[0] if group.args else group.kwargs.get("name", "default")) if group else ""
    return item.nodeid.removesuffix(f"@{name}") if group else item.nodeid


def pytest_sessionstart() -> None:
    _switch("")
