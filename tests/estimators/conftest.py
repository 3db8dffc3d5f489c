"""`pytest tests/estimators --golden DIR` checks the estimators against another set of golden files."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.types.episode import Episode, Node, Turn
from agentrl.types.task import Task
from tests.lean import no_curves

__all__ = ["no_curves"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", type=Path, help="folder of golden files (default: tests/golden)")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--golden", default=None)
    if folder is not None and not any(folder.glob("*.json")):
        raise pytest.UsageError(f"--golden {folder}: no golden files there")


@pytest.fixture
def make_episode():
    """Makes a real episode: (id, group, reward, [(state, tokens, turn reward), ...])."""

    def make(id, group, reward, turns=(("s", 1, None),), status="done"):
        nodes = [Node(parent=-1, kind="prompt", token_ids=[1, 2])]
        records = []
        for index, (state, tokens, extra) in enumerate(turns):
            nodes.append(Node(parent=len(nodes) - 1, kind="sampled", token_ids=[3] * tokens, logprobs=[-0.5] * tokens))
            rewards = {} if extra is None else {"step": extra, "unscored": None}
            records.append(Turn(index=index, node=len(nodes) - 1, text="", finish="stop", state=state, rewards=rewards))
        return Episode(
            id=id, group_id=group, task=Task.of("t", "go"), status=status, nodes=nodes, turns=records, reward=reward
        )

    return make
