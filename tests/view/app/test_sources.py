"""Where the app gets its data: an export on disk, a run that is being written, a path prefix, and what goes wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import RunDir
from agentrl.view.web.export import export
from agentrl.view.web.library import Library
from agentrl.view.web.server import ViewServer
from tests.store.make import make_episode
from tests.view.app.driving import Screen, served

pytestmark = pytest.mark.slow

DESK = "train/000099-desk#0"


def test_an_export_is_the_same_app_from_disk(chromium: Any, runs: Path, tmp_path: Path) -> None:
    library = Library(runs / "everything", cache=tmp_path / "cache")
    page = export(library, tmp_path / "page.html", 200)
    library.close()
    with chromium.new_context() as context:
        screen = Screen(context.new_page(), page.as_uri())
        screen.sees("Reward components").holds(".live", "export")
        screen.is_clean()
        key = screen.page.evaluate("decodeURIComponent(location.hash.split('/')[2])")
        screen.go("run", key, "episodes", query="?q=screenshot").sees("1 of 97 episodes").sees(DESK)
        screen.keys("j", "Enter").holds(".shot img").holds(".shot .mark text", "1")
        screen.until("() => document.querySelector('.shot img').naturalWidth === 64")
        screen.go("run", key, "group", "train/000003-maze1").sees("parts here")
        screen.go("run", key, "tokens", DESK).holds(".tokens span")
        screen.go("run", key, "failures").sees("Slowest episodes")
        assert screen.page.title() == "maze · agentrl"
        assert not screen.wrong, screen.wrong


def test_a_run_is_followed_while_it_is_written_and_when_it_is_deleted(chromium: Any, tmp_path: Path) -> None:
    with (
        RunDir.create(tmp_path / "run", {"recipe": {"name": "house"}}) as run,
        served(tmp_path, tmp_path / "cache") as server,
        chromium.new_context() as context,
    ):
        screen = Screen(context.new_page(), server.url).go("run", "run", "episodes").sees("No episode yet")
        run.add(make_episode("train/000000-first#0", iteration=3))
        screen.sees("train/000000-first#0").sees("1 of 1 episodes").holds(".live", "running")
        run.add(make_episode("train/000000-first#1", iteration=3))
        screen.sees("2 of 2 episodes")
        assert not screen.wrong, screen.wrong
        run.close()
        shutil.rmtree(tmp_path / "run")
        screen.page.reload()
        screen.holds(".banner")


def test_a_server_that_ended_is_said_and_the_screen_stays(screen: Screen) -> None:
    screen.go("run", "everything", "episodes").sees(DESK)
    screen.page.route("**/api/**", lambda route: route.abort())
    screen.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    screen.sees("does not answer").holds(".live", "no connection").sees(DESK)


def test_it_works_behind_a_path_prefix(chromium: Any, server: ViewServer) -> None:
    base = server.url.partition("?")[0]

    def forward(route: Any) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace("/behind/a/proxy", "", 1)))

    with chromium.new_context() as context:
        screen = Screen(context.new_page(), server.url)
        screen.page.route("**/behind/a/proxy/**", forward)
        screen.page.goto(f"{base}behind/a/proxy/#/run/everything/episodes")
        screen.sees(DESK)
        assert not screen.wrong, screen.wrong


def test_a_browser_without_the_cookie_is_told_what_to_open(chromium: Any, server: ViewServer) -> None:
    with chromium.new_context() as context:
        Screen(context.new_page(), server.url.partition("?")[0]).sees("open the URL that the terminal printed")


def test_a_heartbeat_says_what_is_in_flight(screen: Screen) -> None:
    beat = {
        "at": 1_790_000_100.0,
        "iteration": 24,
        "phase": "rollout",
        "done": 10,
        "total": 64,
        "phases": {"sandbox": 3, "agent": 20},
        "episodes": [{"id": "train/000024-slow#0", "phase": "tools", "since": 1_790_000_000.0}],
        "queue": {"waiting": 7},
    }
    news = {
        "cursor": "c",
        "state": "running",
        "changed": [],
        "episodes": 97,
        "iteration": 24,
        "index": None,
        "live": beat,
    }
    screen.page.route("**/api/updates?**", lambda route: route.fulfill(json=news))
    screen.go("run", "everything", "overview").sees("Iteration 24 is being played").sees("10 of 64 episodes done")
    screen.sees("23 in flight").sees("sandbox 3").sees("queue waiting 7").holds(".live", "running, iteration 24")
    screen.is_clean()
    screen.go("run", "everything", "failures").sees("train/000024-slow#0").sees("1 min 40 s")
    assert not screen.wrong, screen.wrong
