"""Where the app gets its data: an export on disk, a run that is being written, a path prefix, and what goes wrong."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentrl.store import RunDir
from agentrl.store.heartbeat import Flight, Pulse, write_pulse
from agentrl.view.web.export import export
from agentrl.view.web.library import RunLibrary
from agentrl.view.web.server import ViewServer
from agentrl.view.web.text_index import TextIndex
from tests.store.make import make_episode
from tests.view.app.driving import Screen, served

pytestmark = [pytest.mark.slow, pytest.mark.family("screens")]

DESK = "train/000099-desk#0"


def test_an_export_is_the_same_app_from_disk(chromium: Any, runs: Path, tmp_path: Path) -> None:
    library = RunLibrary(runs / "everything", cache=tmp_path / "cache")
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


def test_a_request_that_broke_off_is_made_again(screen: Screen) -> None:
    broken: list[str] = []

    def breaks(route: Any) -> None:
        if len(broken) < 2:
            broken.append(route.request.url)
            route.abort("connectionreset")
        else:
            route.continue_()

    screen.page.route("**/api/episodes?**", breaks)
    screen.go("run", "everything", "episodes").sees(DESK)
    assert len(broken) == 2


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


def test_a_heartbeat_says_what_is_in_flight(chromium: Any, tmp_path: Path) -> None:
    now = time.time()
    flights = {"train/000024-slow#0": Flight(stage="tools", since=now - 100, turns=2)}
    flights |= {f"train/000024-new#{k}": Flight(stage="sandbox", since=now) for k in range(3)}
    with (
        RunDir.create(tmp_path / "run", {"recipe": {"name": "house"}}) as run,
        served(tmp_path, tmp_path / "cache") as server,
        chromium.new_context() as context,
    ):
        run.add(make_episode("train/000000-first#0", iteration=3))
        pulse = Pulse(at=now, pid=1, started=now, phase="iteration 24", phase_since=now - 10, done=10, total=64)
        write_pulse(run.path, replace(pulse, episodes=flights, running=4, waiting=7, sandboxes={"in_use": 3}))
        screen = Screen(context.new_page(), server.url).go("run", "run", "overview").sees("Now: iteration 24")
        screen.sees("10 of 64 done").sees("4 in flight").sees("sandbox 3").sees("4 begun, 7 wait for a place")
        screen.sees("sandboxes: in use 3").holds(".live", "running: iteration 24")
        screen.is_clean()
        screen.go("run", "run", "failures").sees("train/000024-slow#0").sees("1 min 40 s")
        write_pulse(run.path, replace(pulse, at=now + 2, phase="iteration 25"))
        screen.go("run", "run", "overview").sees("Now: iteration 25").holds(".live", "running: iteration 25")
        assert not screen.wrong, screen.wrong


def test_numbers_of_a_half_built_index_say_so_and_follow(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, gate, add = [], threading.Event(), TextIndex._add

    def slow(index: TextIndex, id: str) -> None:
        begun.append(id)
        if len(begun) > 2:
            gate.wait()
        add(index, id)

    monkeypatch.setattr(TextIndex, "_add", slow)
    monkeypatch.setattr("agentrl.view.web.text_index._PIECE", 2)
    with RunDir.create(tmp_path / "run", {"recipe": {"name": "house"}}) as run:
        for member in range(4):
            run.add(make_episode(f"train/000000-first#{member}", turns=1, reward=0.0, components={"found": 0.0}))
    with served(tmp_path, tmp_path / "cache") as server, chromium.new_context() as context:
        try:
            screen = Screen(context.new_page(), server.url).go("run", "run", "failures")
            screen.sees("indexing 2 of 4 episodes").holds("a", "reward 0: 4 episodes")
            screen.go("run", "run", "episodes").sees("indexing 2 of 4 episodes")
            screen.go("run", "run", "overview").sees("indexing 2 of 4 episodes").holds("td.num", "2")
        finally:
            gate.set()
        screen.until("() => !document.querySelector('.indexing')").holds("tr:has-text('found') td.num", "4")
        screen.go("run", "run", "failures").page.get_by_role("link", name="reward 0: 4 episodes").click()
        screen.sees("4 of 4 episodes")
        assert not screen.wrong, screen.wrong
