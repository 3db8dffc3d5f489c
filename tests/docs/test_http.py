"""The page docs/http.md, executed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.store.run_dir import RunDir
from agentrl.tools.builtin.web.fetch import HttpSettings
from agentrl.tools.methods import toolbox
from agentrl.types.episode import Episode
from tests.command import agentrl
from tests.docs.site import served
from tests.engines.http_server import serving
from tests.sound import assert_sound

PAGE = Path(__file__).parents[2] / "docs" / "http.md"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder that the page describes; its site is served."""
    with served(PAGE, "hours", tmp_path) as folder:
        yield folder


def played(folder: Path, script: str) -> list[Episode]:
    agentrl("rollout", "hours", "--n", "2", "--script", script, cwd=folder)
    run = f"runs/hours-{script}"
    assert_sound(folder / run)
    with RunDir.read(folder / run) as stored:
        return list(stored.episodes())


@pytest.mark.slow
def test_the_example(folder: Path) -> None:
    assert "get" in agentrl("recipe", "check", "hours", cwd=folder).stdout
    assert {episode.reward for episode in played(folder, "oracle")} == {1.0}
    shown = agentrl("show", "runs/hours-oracle", "Tea house#0", cwd=folder).stdout
    said = PAGE.read_text().split("## Output\n\n```text\n")[1].split("```")[0]
    for line in filter(None, re.sub(r":8011", "", said).splitlines()):
        assert line in re.sub(r":\d{4,}", "", shown)


@pytest.mark.slow
def test_random_calls_end_no_episode(folder: Path) -> None:
    episodes = played(folder, "random")
    assert {(episode.status, episode.reward) for episode in episodes} == {("truncated", 0.0)}
    outcomes = [call.outcome for episode in episodes for turn in episode.turns for call in turn.calls]
    assert len(outcomes) == 12
    assert {"error"} <= set(outcomes) <= {"error", "ok"}


async def test_a_tool_of_ones_own_takes_the_client() -> None:
    pytest.importorskip("openai")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "Advice" in block]

    async def reply(path: str, body: Any) -> Any:
        said = {"role": "assistant", "content": f"Ask {body['messages'][0]['content']}"}
        choice = {"index": 0, "finish_reason": "stop", "message": said}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    async with serving(reply) as url:
        host = url.removeprefix("http://")
        namespace: dict[str, Any] = {}
        exec(code.replace("https://api.example.org", url).replace("api.example.org", host), namespace)
        tool = namespace["Advice"]()
        assert (await toolbox([tool])["advise"].call({"question": "a friend"})).text == "Ask a friend"
        await tool.close()


def test_the_settings_are_those_of_the_page() -> None:
    section = PAGE.read_text().split("## Allowed hosts")[1].split("\n\n")[1]
    said = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))
    fields = {name: field.default for name, field in HttpSettings.model_fields.items()}
    assert list(said) == list(fields)
    shown = {"every public host": None, "true": True}
    for name, default in fields.items():
        value = said[name].replace(",", "")
        assert (shown[value] if value in shown else float(value)) == default
