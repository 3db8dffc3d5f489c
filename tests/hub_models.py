"""Tiny models on a hub of this machine, and a recipe that names one of them.

from tests.hub_models import hub, models
__all__ = ["hub", "models"]  # fixtures
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.model import ModelSettings, ScratchModel, ScratchVision
from agentrl.models.load import load_model
from tests.checkpoint import shared
from tests.hub import Hub, environment, open_hub

NAME = "agentrl-tests/tiny"
RECIPE = f"""\
agent: {{format: tags, max_turns: 3, describe_tools: false}}
model:
  path: {NAME}
  revision: v1
sampling: {{max_tokens: 6}}
credit: grpo
concurrency: 4
train: {{iterations: 1, groups: 1, group_size: 4, minibatch: 4, lr: 1.0e-2, entropy_bonus: 0.01, canary: false}}
eval: {{episodes: 2}}
"""
TEXTS = ["Count to 3.", "<add>1</add><|im_end|>"] * 20


def _models(here: Path) -> None:
    """Two policies of one architecture, and one that sees."""
    scratch = ScratchModel(hidden=16, layers=1, heads=1, vocab_size=300, max_context=256)
    eyes = scratch.model_copy(update={"vision": ScratchVision(hidden=16)})
    for name, model, seed in (("first", scratch, 0), ("second", scratch, 1), ("eyes", eyes, 2)):
        loaded = load_model(ModelSettings(scratch=model, device="cpu"), texts=TEXTS, seed=seed)
        loaded.model.save_pretrained(here / name)
        loaded.save_described(str(here / name))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory, "hub-models", _models)


@pytest.fixture
def hub(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the first policy at v1 and the second at main, which this process talks to."""
    monkeypatch.chdir(tmp_path)
    with open_hub() as hub:
        hub.put(NAME, models / "first", "v1")
        hub.put(NAME, models / "second")
        with environment(**hub.environment(tmp_path / "hf")):
            yield hub
