"""The page docs/web.md, executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.store.run_dir import RunDir
from agentrl.tools.builtin.web.launching import find_chromium
from agentrl.types.episode import Episode
from agentrl.types.errors import AgentRLError
from tests.command import agentrl
from tests.docs.site import served
from tests.sound import assert_sound

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "web.md"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder that the page describes; its site is served."""
    try:
        find_chromium()
    except AgentRLError as error:
        pytest.skip(error.message)
    with served(PAGE, "teas", tmp_path) as folder:
        yield folder


def played(folder: Path, script: str) -> list[Episode]:
    agentrl("rollout", "teas", "--n", "4", "--script", script, cwd=folder)
    assert_sound(folder / f"runs/teas-{script}")
    with RunDir.read(folder / f"runs/teas-{script}") as stored:
        return list(stored.episodes())


def test_the_example(folder: Path) -> None:
    assert "open" in agentrl("recipe", "check", "teas", cwd=folder).stdout
    assert [episode.reward for episode in played(folder, "oracle")] == [1.0] * 4
    shown = agentrl("show", "runs/teas-oracle", "order0#0", cwd=folder).stdout
    page = re.search(r"```text\n(page: Order\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert page is not None
    assert all(line in shown for line in page[1].splitlines() if not line.startswith("url"))


def test_random_calls(folder: Path) -> None:
    assert {(episode.status, episode.reward) for episode in played(folder, "random")} <= {
        ("done", 0.0),
        ("truncated", 0.0),
    }
