"""What tests of the viewer's screens share: a folder of runs, its server, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.tools.builtin.web.launching import Launch, find_chromium
from agentrl.types.errors import AgentRLError
from agentrl.view.web.server import ViewServer
from tests.view.app.driving import Screen, served
from tests.view.app.everything import make_everything


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: two rollouts of a shipped recipe, a run that holds everything an episode may, an empty one."""
    folder = tmp_path_factory.mktemp("runs")
    for script in ("oracle", "random"):
        agentrl.rollout("quickstart", 8, group_size=4, script=script, out=folder / script, reporters=())
    make_everything(folder / "everything")
    make_everything(folder / "empty", iterations=0)
    return folder


@pytest.fixture(scope="session")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    with served(runs, tmp_path_factory.mktemp("cache")) as server:
        yield server


@pytest.fixture(scope="module")  # an event loop runs in this thread until it ends: other files start their own
def chromium() -> Iterator[Any]:
    try:
        find_chromium()
    except AgentRLError as error:
        pytest.skip(error.message)
    from playwright.sync_api import sync_playwright

    settings = Launch().settings()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=settings["executable"], args=settings["args"])
        yield browser
        browser.close()


@pytest.fixture
def screen(chromium: Any, server: ViewServer) -> Iterator[Screen]:
    """The viewer on the folder, as its printed URL opens it."""
    with chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light") as context:
        yield Screen(context.new_page(), server.url)
