"""A weight transfer of one's own, selected as any other plug-in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.train import train
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.loader import load_recipe
from agentrl.engines.vllm.launch import arguments
from agentrl.engines.vllm.recipes import serving as what_is_served
from agentrl.rollouts.builder import build
from agentrl.rollouts.engines import opening_of
from agentrl.types.errors import RecipeError
from tests.command import agentrl
from tests.counting import CODE, RECIPE

from .fake_vllm import FakeVLLM
from .http_server import serving
from .vllm_world import small_model, tokenizer_of

TRANSFERS = """
from agentrl.engines.vllm.transfer import FileTransfer

class Counted(FileTransfer):
    "Says how many tensors there are."
    backend = "counted"
    def __init__(self, folder, unit: str, at_least: int = 1):
        super().__init__(folder)
        self.unit, self.at_least = unit, at_least
    async def prepare(self, weights):
        await super().prepare(weights)
        assert len(weights) >= self.at_least
        self.info = {"count": len(weights), "unit": self.unit, "folder": str(self.path.parent.parent)}
    async def send(self, replicas, post):
        return await post(replicas, "/update_weights", {"update_info": self.info})

class Nameless:
    prepare = send = close = FileTransfer.close

class Half:
    backend = "half"
    close = FileTransfer.close
"""
TRAINING = """
agent: {format: tags, describe_tools: false, max_turns: 2}
sampling: {max_tokens: 4}
train: {iterations: 1, groups: 2, group_size: 2, canary: false}
"""


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    folder = tmp_path / "counting"
    folder.mkdir()
    (folder / "task.py").write_text(CODE)
    (folder / "transfer.py").write_text(TRANSFERS)
    (folder / "recipe.yaml").write_text(RECIPE + TRAINING + f"model: {{path: {tmp_path / 'model'}}}\n")
    return folder


@pytest.mark.slow
async def test_it_carries_the_weights_with_its_own_settings(counting: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(small_model(tmp_path / "model"))

    class Server(FakeVLLM):
        async def __call__(self, path: str, body: Any) -> Any:
            if path == "/tokenize":
                return {"tokens": tokenizer.encode(body["prompt"], special=True)}
            if path == "/detokenize":
                return {"prompt": tokenizer.decode(body["tokens"])}
            return await super().__call__(path, body)

    fake = Server()
    async with serving(fake) as url:
        engine = f"{{use: vllm, urls: ['{url}'], weights_dir: {tmp_path / 'shared'},"
        engine += " transfer: {use: ./transfer.py:Counted, unit: tensors, at_least: 2}}"
        arguments = ("train", "counting", "--out", "run", "--set", f"engine={engine}")
        await asyncio.to_thread(agentrl, *arguments, cwd=tmp_path)
    sent = [body["update_info"] for path, body in fake.asked if path == "/update_weights"]
    assert len(sent) == 2  # of the model as it was, and of the one update
    assert sent[0]["count"] > 2
    assert (sent[0]["unit"], sent[0]["folder"]) == ("tensors", str(tmp_path / "shared"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("./transfer.py:Counted", "needs the setting 'unit'"),
        ("{use: ./transfer.py:Counted, unit: a, units: b}", "has no setting 'units'"),
        ("./transfer.py:Nameless", "has no attribute 'backend'"),
        ("./transfer.py:Half", "lacks the method"),
        ("fil", "there is no weight transfer 'fil'"),
        ("{use: file, unit: a}", "has no setting 'unit'"),
    ],
)
def test_what_is_no_transfer_is_refused_before_anything_runs(counting: Path, given: str, told: str) -> None:
    with pytest.raises(RecipeError, match=told):
        train(counting, overrides=["engine={use: vllm, urls: ['http://127.0.0.1:9']}", f"engine.transfer={given}"],
              out=counting.parent / "run")  # fmt: skip


def test_servers_are_started_with_its_other_side(counting: Path, tmp_path: Path) -> None:
    small_model(tmp_path / "model")
    own = "engine={use: vllm, transfer: {use: ./transfer.py:Counted, unit: a}}"
    for override, backend in (
        ("engine=vllm", "file"),
        ("engine={use: vllm, transfer: nccl}", "nccl"),
        (own, "counted"),
    ):
        opening = opening_of(build(load_recipe(str(counting), [override])), ByteTokenizer())
        line = arguments(opening.settings, tmp_path / "model", what_is_served(opening), 8000, "h", cpu=False)
        assert line[line.index("--weight-transfer-config") + 1] == f'{{"backend": "{backend}"}}'
