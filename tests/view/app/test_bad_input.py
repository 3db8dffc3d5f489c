"""Runs that are damaged, hostile, huge, or of another version, and a port that is taken: seen in real Chromium."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agentrl.store import RunDir
from agentrl.store.reader import RunReader
from tests.store.make import make_episode
from tests.view.app.driving import Screen, served
from tests.view.app.everything import make_everything
from tests.view.app.hostile import GROUP, make_hostile, name_of
from tests.view.web.test_server import files_of

pytestmark = [pytest.mark.slow, pytest.mark.family("view")]

LINE = "a line of the output of a tool, one hundred characters long, of which there are a million in one run.\n"
MANY = 1_000_000
"""Lines in 100 MB."""


@contextmanager
def looking_at(chromium: Any, runs: Path, cache: Path, refused: int = 0) -> Iterator[Screen]:
    with served(runs, cache) as server, chromium.new_context(viewport={"width": 1280, "height": 800}) as context:
        yield Screen(context.new_page(), server.url, refused=refused)


@pytest.mark.parametrize("screen", ["overview", "episodes", "episode", "failed", "group", "tokens", "failures"])
def test_hostile_text_acts_nowhere(chromium: Any, tmp_path: Path, screen: str) -> None:
    make_hostile(tmp_path / "runs" / "run")
    places = {"failed": ["episode", name_of("#2")], "group": ["group", GROUP]}
    places |= {name: [name, name_of("#0")] for name in ("episode", "tokens")}
    with looking_at(chromium, tmp_path / "runs", tmp_path / "cache") as page:
        page.sees("onerror=").go("run", "run", *places.get(screen, [screen]))
        page.holds("main :text('onerror=') >> visible=true").is_clean()
        acted = "main :is(img[src='x'], script, a[href^='javascript'])"
        assert page.page.locator(acted).count() == 0
        assert page.page.evaluate("document.title").startswith("</script>")  # the recipe's name, and not `owned`
        assert "\x1b" not in page.page.evaluate("document.body.innerText")


def test_an_episode_with_100_mb_of_output_is_shown_in_pieces(chromium: Any, tmp_path: Path) -> None:
    output = LINE * MANY
    made = make_episode("train/000000-much#0", turns=2, iteration=1)
    first, second = made.turns
    with RunDir.create(tmp_path / "runs" / "run", {"recipe": {"name": "much"}}) as run:
        called = replace(first.calls[0], result=output)
        stored = replace(second.calls[0], dropped=len(output), blob=run.put_blob(output.encode()))
        said = {"role": "tool", "name": called.name, "content": output}
        first = replace(first, calls=[called], observations=[said])
        run.add(replace(made, turns=[first, replace(second, calls=[stored])]))
    with looking_at(chromium, tmp_path / "runs", tmp_path / "cache") as page:
        page.go("run", "run", "episode", made.id).sees(f"20,000 of {len(output):,} characters")
        page.page.get_by_role("button", name="load more").first.click()
        page.sees(f"220,000 of {len(output):,} characters").sees(f"{len(output):,} characters were cut")
        page.is_clean()
        assert page.page.evaluate("document.body.textContent.length") < 1_000_000
        page.go("run", "run", "group", made.group_id).sees("a line of the output").is_clean()
        page.go("run", "run", "episodes", query="?q=million").sees("1 of 1 episodes").sees("where it is found")
        page.is_clean()


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_torn_shard_leaves_the_rest_and_is_told(chromium: Any, tmp_path: Path, index: str) -> None:
    path = make_everything(tmp_path / "runs" / "run", iterations=2)
    (shard,) = (path / "episodes").iterdir()
    with RunReader(path) as run:
        ((start, length),) = run.select("offset, length FROM all_episodes WHERE id = ?", ["train/000001-maze0#1"])
    whole, middle = shard.read_bytes(), start + length // 2
    shard.write_bytes(whole[:middle] + bytes(8) + whole[middle + 8 : -20])  # one record within, and the last one
    if index == "lost":
        (path / "index.sqlite").unlink()
    before = files_of(path)
    with looking_at(chromium, tmp_path / "runs", tmp_path / "cache", refused=500) as page:
        page.go("run", "run", "episodes").sees("the rest is whole: ").holds(".banner.bad", "episodes/00000.jsonl.zst@")
        page.sees("train/000000-maze0#0").is_clean()
        page.go("run", "run", "overview").sees("Distribution").is_clean()
        page.go("run", "run", "failures").sees("Slowest episodes").is_clean()
        page.go("run", "run", "episode", "train/000000-maze0#0").sees("Turn 3").is_clean()
        if index == "kept":
            page.holds(".banner.bad", "2 records are unreadable")
            page.go("run", "run", "episode", "train/000099-desk#0").sees("a record cannot be read")
            page.is_clean()
    assert files_of(path) == before


def test_a_run_of_a_newer_version_is_told_and_the_others_are_shown(chromium: Any, tmp_path: Path) -> None:
    make_everything(tmp_path / "runs" / "old", iterations=1)
    path = make_everything(tmp_path / "runs" / "new", iterations=1)
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"format": 99}))
    before = files_of(path)
    with looking_at(chromium, tmp_path / "runs", tmp_path / "cache", refused=409) as page:
        page.sees("old").sees("format 99").is_clean()
        page.go("run", "new", "overview").sees("format 99").is_clean()
        page.go("run", "old", "overview").sees("Distribution").is_clean()
    assert files_of(path) == before


def test_a_run_that_is_deleted_while_it_is_viewed_stays_on_screen(chromium: Any, tmp_path: Path) -> None:
    path = make_everything(tmp_path / "runs" / "run", iterations=1)
    with looking_at(chromium, tmp_path / "runs", tmp_path / "cache", refused=410) as page:
        page.go("run", "run", "episodes").sees("train/000000-maze1#3")
        shutil.rmtree(path)
        page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.sees("the run was deleted").sees("train/000000-maze1#3").is_clean()


def test_eight_tabs_follow_a_run(chromium: Any, tmp_path: Path) -> None:
    screens = {"episodes": "1 of 1 episodes", "overview": "Distribution", "failures": "Slowest episodes"}
    with (
        RunDir.create(tmp_path / "runs" / "run", {"recipe": {"name": "house"}}) as run,
        served(tmp_path / "runs", tmp_path / "cache") as server,
        chromium.new_context() as context,
    ):
        run.add(make_episode("train/000000-first#0", iteration=3))
        tabs = [(Screen(context.new_page(), server.url), name) for name in [*screens, "episodes"] * 2]
        assert len(tabs) == 8
        for tab, name in tabs:
            tab.go("run", "run", name).sees(screens[name])
        run.add(make_episode("train/000000-first#1", iteration=3))
        for tab, _ in tabs:
            tab.holds(".tabs .count", "2")
            assert not tab.wrong, tab.wrong


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    path = make_everything(tmp_path / "run", iterations=0)
    before = files_of(path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = ["-m", "agentrl.cli", "view", str(path), "--no-open", "--port", str(taken.getsockname()[1])]
        env = {**os.environ, "AGENTRL_CACHE": str(tmp_path / "cache")}
        ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env)
    assert ended.returncode != 0
    assert "cannot listen at 127.0.0.1" in ended.stderr
    assert "--port 0 takes a free one" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert files_of(path) == before
