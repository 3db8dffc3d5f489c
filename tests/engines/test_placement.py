"""Which GPUs and how much context vLLM servers get. There is no GPU here: plans and commands are what is tested."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.api.train import train as train_recipe
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.loader import load_recipe
from agentrl.config.recipe import Recipe
from agentrl.engines.vllm import launch, recipes
from agentrl.engines.vllm.engine import VLLMEngine
from agentrl.engines.vllm.launch import Serving, arguments, prepare
from agentrl.engines.vllm.placement import assigned, visible_gpus
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.rollouts.builder import build
from agentrl.rollouts.engines import needed_context, opening_of
from agentrl.types.errors import EngineError, RecipeError
from tests.counting import CODE, RECIPE

TRAINED = """\
model: {scratch: {max_context: 100000}}
credit: {use: grpo}
train: {iterations: 1}
engine: {use: vllm}
"""


def settings(**given: Any) -> VLLMSettings:
    return VLLMSettings(**given)


def see(monkeypatch: pytest.MonkeyPatch, gpus: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's vLLM is one for GPUs, and the trainer computes on one."""
    monkeypatch.setattr(launch, "_package", lambda python: ("vllm", ""))
    monkeypatch.setattr(recipes, "on_cuda", lambda model: True)


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    (tmp_path / "task.py").write_text(CODE)
    (tmp_path / "recipe.yaml").write_text(RECIPE + TRAINED)
    return lambda *more: load_recipe(str(tmp_path), list(more))


@pytest.mark.parametrize(
    ("given", "trainer", "expected"),
    [
        ({}, 1, [["d"]]),
        ({"replicas": 3}, 1, [["b"], ["c"], ["d"]]),
        ({"tensor_parallel": 2}, 2, [["c", "d"]]),
        ({"replicas": 2, "tensor_parallel": 2}, 0, [["a", "b"], ["c", "d"]]),
        ({"gpus": [3, 1], "replicas": 2}, 1, [["d"], ["b"]]),
        ({"colocate": "sleep", "memory_share": 0.5}, 1, [["a"]]),
        ({"colocate": "sleep", "memory_share": 0.5, "gpus": [1]}, 1, [["b"]]),
    ],
)
def test_servers_get_the_gpus_that_the_trainer_has_not(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], trainer: int, expected: list[list[str]]
) -> None:
    see(monkeypatch, "a,b, c,d")
    assert assigned(settings(**given), trainer) == expected


@pytest.mark.parametrize(
    ("given", "seen", "said"),
    [
        ({}, "0", "1 server of 1 GPU each take 1, the trainer 1, and this process sees 1 GPU\n.*engine.colocate=sleep"),
        ({"replicas": 2, "tensor_parallel": 2}, "0,1,2,3", "2 servers of 2 GPUs each take 4, the trainer 1, and .* 4"),
        ({}, "", "this process sees 0 GPUs\n.*make vllm-cpu"),
        ({"gpus": [4]}, "0,1,2,3", "GPU 4 does not exist: this process sees 4 GPUs\n.*indices from 0 to 3"),
        ({"gpus": [2, 3]}, "0,1,2,3", "2 GPUs are named, and 1 server of 1 GPU each take 1"),
        ({"gpus": [0]}, "0,1,2,3", "GPU 0 is the trainer's\n.*from 1 on"),
    ],
)
def test_too_few_gpus_and_those_of_others_are_told(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], seen: str, said: str
) -> None:
    see(monkeypatch, seen)
    with pytest.raises(EngineError, match=rf"(?s){said}"):
        assigned(settings(**given), 1)


@pytest.mark.slow
def test_gpus_are_counted_where_no_variable_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == []
    told = tmp_path / "nvidia-smi"
    told.write_text("#!/bin/sh\necho 'GPU 0: H100 (UUID: GPU-1)'\necho 'GPU 1: H100 (UUID: GPU-2)'\n")
    told.chmod(told.stat().st_mode | stat.S_IXUSR)
    assert visible_gpus() == ["0", "1"]
    see(monkeypatch, "GPU-2,-1,GPU-1")
    assert visible_gpus() == ["GPU-2"], "CUDA, too, stops at -1"


def test_a_gpu_that_is_not_there_is_told_before_the_first_episode(
    tmp_path: Path, recipe: Any, on_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    see(monkeypatch, "0,1")
    with pytest.raises(EngineError, match="GPU 7 does not exist"):
        train_recipe(recipe("engine.gpus=[7]"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_each_rank_has_a_gpu_of_its_own(recipe: Any, on_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    see(monkeypatch, "0,1,2")
    ranked: Recipe = recipe("scale={use: process, trainer_ranks: 2}")
    with pytest.raises(EngineError, match="take 2, the trainer 2, and this process sees 3"):
        VLLMEngine.check_machine(settings(replicas=2), ranked)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(EngineError, match="take 2, the trainer 2, and this process sees 3"):
        VLLMEngine.check_machine(settings(replicas=2), recipe())


def test_a_servers_command_and_environment_follow_the_settings(
    tmp_path: Path, on_gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    see(monkeypatch, "4,5")
    given = settings(colocate="sleep", memory_share=0.4, max_context=2048)
    _, cpu, gpus = prepare(given, Serving("bfloat16", 4096, trainer_gpus=1))
    assert not cpu
    assert launch._environment(given, gpus[0])["CUDA_VISIBLE_DEVICES"] == "4"
    line = " ".join(arguments(given, tmp_path, Serving("bfloat16", 4096), 8000, "h", cpu=cpu))
    for wanted in ("--gpu-memory-utilization 0.4", "--enable-sleep-mode", "--max-model-len 2048"):
        assert wanted in line
    line = " ".join(arguments(settings(), tmp_path, Serving("bfloat16"), 8000, "h", cpu=False))
    assert "--max-model-len auto" in line, "what the memory has room for"
    assert "--gpu-memory" not in line


def test_settings_for_gpus_are_refused_with_a_vllm_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_package", lambda python: ("vllm-cpu", ""))
    with pytest.raises(EngineError, match=r"engine.memory_share: the vLLM of .* is for CPUs"):
        prepare(settings(memory_share=0.5), Serving("float32"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["train.max_staleness=1", "train.importance={high: 2}"], "train.max_staleness"),
        (["scale={use: process, trainer_ranks: 2}"], "scale.trainer_ranks"),
        (["engine.transfer=nccl"], "engine.transfer"),
    ],
)
def test_turns_on_a_gpu_need_one_trainer_that_waits(tmp_path: Path, recipe: Any, more: list[str], said: str) -> None:
    with pytest.raises(RecipeError, match=f"{said}: with engine.colocate"):
        train_recipe(recipe("engine.colocate=sleep", "engine.memory_share=0.4", *more), out=tmp_path / "run")


def test_what_belongs_together_is_asked_for(recipe: Any) -> None:
    with pytest.raises(ValidationError, match="'colocate' needs 'memory_share'"):
        settings(colocate="sleep")
    with pytest.raises(ValidationError, match="'gpus' contains an index twice"):
        settings(gpus=[1, 1])
    with pytest.raises(RecipeError, match=r"engine\.gpus: .*Ray places servers"):
        build(recipe("engine.gpus=[1]", "scale=ray"))


def test_the_context_is_what_the_recipe_can_need(recipe: Any) -> None:
    small = ["agent.max_turns=2", "limits.observation_chars=1000", "sampling.max_tokens=100"]
    needed = needed_context(build(recipe(*small)))
    assert needed is not None
    assert 2 * 1100 < needed < 2 * 1100 + 3000
    assert recipes.serving(opening_of(build(recipe(*small)), ByteTokenizer())).max_context == needed
    assert recipes.serving(opening_of(build(recipe()), ByteTokenizer())).max_context is None, (
        "200,000 characters of results: more than the model allows"
    )
    assert needed_context(build(recipe(*small, "curriculum=[{scaling_inter: {max_turns: [2, 4], every: 1}}]"))) is None
    without_tools = needed_context(build(recipe("agent.max_turns=1", "tools=[]", "sampling.max_tokens=100")))
    assert without_tools is not None
    assert without_tools < 1500
