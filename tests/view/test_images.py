"""Images in `show` and in the exported page."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from agentrl.store import RunDir
from agentrl.types.parts.content import with_images
from agentrl.types.parts.image import data_url
from agentrl.types.parts.placeholders import ids_of
from agentrl.view.show import show_episode
from tests.images import BLUE, RED
from tests.store.make import make_episode
from tests.view.test_show import text_of
from tests.view.web.test_export import data_of, exported


@pytest.fixture
def run(tmp_path: Path):
    """An episode that opens with a red image, and whose first call shows a blue one."""
    with RunDir.create(tmp_path / "run", {"recipe": {"name": "screens"}}) as run:
        red, blue = (
            {"type": "image", "blob": run.put_blob(image), "width": 8, "height": 6, "format": "png"}
            for image in (RED, BLUE)
        )
        episode = make_episode("e", turns=1)
        (turn,) = episode.turns
        call = msgspec.structs.replace(turn.calls[0], images=[blue])
        message = {"role": "tool", "name": call.name, "content": with_images(call.result, call.images)}
        turn = msgspec.structs.replace(turn, calls=[call], observations=[message])
        first = msgspec.structs.replace(episode.nodes[0], token_ids=[1, *ids_of(red["blob"], 2), 2])
        prompt = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, red]}]
        nodes = [first, *episode.nodes[1:]]
        run.add(msgspec.structs.replace(episode, prompt=prompt, turns=[turn], nodes=nodes))
        yield run


def test_show_names_the_images(run):
    text = text_of(show_episode, run, "e", tokens=True)
    lines = [line.strip() for line in text.splitlines() if "[image" in line]
    assert len(lines) == 2  # what a call showed is not repeated as the message of its result
    assert all(line.startswith("[image 8x6 png 0.1 kB sha256:") for line in lines)
    assert "What is it?" in text
    next(run.path.glob("blobs/*/*")).unlink()
    assert "[image 8x6 png missing sha256:" in text_of(show_episode, run, "e")


def test_the_page_holds_the_images(run, tmp_path):
    data = data_of(exported(run.path, tmp_path, decoder=lambda run: str))
    assert sorted(data["blobs"].values()) == sorted([data_url(RED), data_url(BLUE)])
    first = data["tokens"]["e"]["nodes"][0]
    assert first["token_ids"] == [1, -1, -1, 2]
    assert first["text"] == ["1", "[image]", "[image]", "2"]


def test_images_beyond_what_a_page_takes_are_left_out(run, tmp_path, monkeypatch):
    monkeypatch.setattr("agentrl.view.web.export._IMAGES", len(data_url(RED)) + 10)
    assert list(data_of(exported(run.path, tmp_path))["blobs"].values()) == [data_url(RED)]


@pytest.mark.slow
def test_where_a_call_acted_is_shown_and_marked(tmp_path):
    """A click and a drag, each on the image that stood last before it; a reply without calls, too."""
    with RunDir.create(tmp_path / "run", {"recipe": {"name": "screens"}}) as run:
        first, second = (
            {"type": "image", "blob": run.put_blob(png), "width": 8, "height": 6, "format": "png"}
            for png in (RED, BLUE)
        )
        episode = make_episode("e", turns=2)
        click = msgspec.structs.replace(episode.turns[0].calls[0], points=[(3.0, 2.5)], images=[second])
        drag = msgspec.structs.replace(episode.turns[1].calls[0], points=[(1.0, 1.0), (7.0, 5.0)])
        turns = [
            msgspec.structs.replace(turn, calls=[call], observations=[])
            for turn, call in zip(episode.turns, (click, drag), strict=True)
        ]
        turns[1] = msgspec.structs.replace(turns[1], points=[(0.0, 6.0)])
        run.add(msgspec.structs.replace(episode, prompt=[{"role": "user", "content": [first]}], turns=turns))
        (kept,) = run.episodes()
        assert [each.calls[0].points for each in kept.turns] == [[(3.0, 2.5)], [(1.0, 1.0), (7.0, 5.0)]]
        text = text_of(show_episode, run, "e")
        assert "at 3, 2.5" in text
        assert "at 1, 1 to 7, 5" in text
        assert "at 0, 6" in text
        page = exported(run.path, tmp_path)
    if shutil.which("chromium") is None:
        pytest.skip("needs chromium")
    before, after = drawn(page, tmp_path).split(f'src="{data_url(BLUE)}"')
    assert 'cx="3" cy="2.5"' in before.split(f'src="{data_url(RED)}"')[1]
    assert "cx" not in before.split(f'src="{data_url(RED)}"')[0]
    assert 'x1="1" y1="1" x2="7" y2="5"' in after
    assert 'cx="7" cy="5"' in after
    assert 'cx="0" cy="6"' in after


def drawn(page, tmp_path, episode="e", run="run") -> str:
    """The page of an episode, as a browser has it."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"{page.as_uri()}#/run/{run}/episode/{quote(episode, safe='')}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.stdout.split("<body>")[1]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_draws_the_images(run, tmp_path):
    article = drawn(exported(run.path, tmp_path), tmp_path)
    assert article.count(f'src="{data_url(RED)}"') == 1
    assert article.count(f'src="{data_url(BLUE)}"') == 1
    assert "What is it?" in article
