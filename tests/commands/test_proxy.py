"""`agentrl proxy`: serves until it is interrupted, and stores a session as an episode."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.store.heartbeat import read_pulse
from agentrl.store.run_dir import RunDir
from tests.command import Started, agentrl
from tests.engines.vllm_world import small_model
from tests.waiting import until

pytestmark = pytest.mark.slow

RECIPE = """\
name: recorded
tasks: {jsonl: tasks.jsonl, prompt: "{question}"}
agent: {format: tags, max_turns: 2}
model: {path: model}
engine: torch
sampling: {max_tokens: 4}
"""


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a proxy for `recipe.yaml` that records into `run`."""
    serving = Started("-m", "agentrl.cli", "proxy", "recipe.yaml", "--port", "0", "--out", "run", cwd=folder)
    try:
        until(lambda: "\n" in serving.said()[0] or serving.poll() is not None)
        found = re.match(r"agents talk to (http://127\.0\.0\.1:\d+)/s/SESSION/v1; .*; into run\n", serving.said()[0])
        assert found is not None, serving.said()
        yield found[1]
    finally:
        serving.send_signal(signal.SIGINT)
        serving.wait()
    assert serving.returncode == 0, serving.said()


def test_a_session_becomes_an_episode(tmp_path: Path) -> None:
    small_model(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text('{"question": "6 x 7?"}\n')
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with served(tmp_path) as url:
        post(f"{url}/s/one/v1/chat/completions", {"messages": [{"role": "user", "content": "6 x 7?"}]})
        assert post(f"{url}/s/one/end", {"rewards": {"solved": 1.0}})["episode"] == "one"
    with RunDir.read(tmp_path / "run") as run:
        assert ([row.id for row in run.rows()], run.info["finished"]) == (["one"], True)
    pulse = read_pulse(tmp_path / "run")
    assert pulse is not None
    assert (pulse.phase, pulse.done, pulse.ended) == ("sessions", 1, "finished")


def test_an_engine_that_returns_text_only_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "6 x 7?"}\n')
    (tmp_path / "recipe.yaml").write_text(
        RECIPE.replace("torch", "{use: openai, urls: [http://127.0.0.1:1/v1], model: m}")
    )
    done = agentrl("proxy", "recipe.yaml", cwd=tmp_path, ok=False)
    assert (done.returncode, "a proxy needs torch or vllm" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "runs").exists()
