"""`agentrl serve`: servers run until a signal stops them, or one of them ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.api.serve import _keep, serve
from agentrl.engines.vllm.launch import Server, Servers
from agentrl.types.errors import EngineError, RecipeError
from agentrl.types.lifeline import Lifeline


class Ready(Servers):
    """Servers that answer at once."""

    async def ready(self, timeout_s: float = 0.0) -> None:
        pass


def servers(folder: Path, program: str) -> Servers:
    process = subprocess.Popen([sys.executable, "-c", program])
    return Ready(folder, [Server("http://127.0.0.1:1", process, folder / "server-0.log", Lifeline())])


@pytest.mark.slow
async def test_a_signal_stops_the_servers(tmp_path: Path) -> None:
    running = servers(tmp_path / "logs", "import time; time.sleep(600)")
    process, notes = running.servers[0].process, []

    def note(line: str) -> None:
        notes.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    await asyncio.wait_for(_keep(running, note), 60)
    assert "urls: [http://127.0.0.1:1]" in notes[0]
    assert process.poll() is not None


@pytest.mark.slow
async def test_a_server_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    ending = servers(tmp_path / "logs", "raise SystemExit(3)")
    with pytest.raises(EngineError, match="the server ended with status 3"):
        await asyncio.wait_for(_keep(ending, lambda line: None), 60)


def test_only_vllm_is_served() -> None:
    with pytest.raises(RecipeError, match="engine.use is 'torch', which needs no server"):
        serve("quickstart", note=print)
