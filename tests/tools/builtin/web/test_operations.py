"""Operations of the browser driver, with a page that fails as Chromium's do."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

from agentrl.types.paths import data_path

CHANGED = "net::ERR_NETWORK_CHANGED at http://127.0.0.1/"


@pytest.fixture(autouse=True)
def chromium() -> None:
    """No browser: the page is a stand-in."""


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in ("shared", "browser"):
        monkeypatch.syspath_prepend(str(data_path("tools", folder)))
    for name in ("operations", "context"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("operations")


class Page:
    """A page whose loads break off with these errors, and then succeed."""

    def __init__(self, *errors: str) -> None:
        self.errors, self.loads = list(errors), 0

    async def goto(self, url: str, *, wait_until: str, timeout: float) -> str:
        self.loads += 1
        if self.errors:
            raise RuntimeError(self.errors.pop(0))
        return url


async def test_a_page_loads_again_when_an_interface_of_the_machine_changes(
    operations: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "PAUSE_S", 0.0)
    page = Page(CHANGED, CHANGED)
    assert await operations._loaded(page, "http://127.0.0.1/", "load", 60.0) == "http://127.0.0.1/"
    assert page.loads == 3


@pytest.mark.parametrize(("error", "seconds"), [(CHANGED, 0.0), ("net::ERR_CONNECTION_REFUSED", 60.0)])
async def test_other_failures_and_a_network_that_changes_for_too_long_are_raised(
    operations: ModuleType, error: str, seconds: float
) -> None:
    page = Page(error, error)
    with pytest.raises(RuntimeError, match=error):
        await operations._loaded(page, "http://127.0.0.1/", "load", seconds)
    assert page.loads == 1
