"""The files in deploy/ and the Dockerfile, as far as that goes without a cluster."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from agentrl.config.loader import load_recipe
from agentrl.simulate.pipeline import Pipeline
from agentrl.simulate.pipeline_file import load_pipeline
from agentrl.types.paths import data_path

ROOT = Path(__file__).parents[2]


def read(name: str) -> Any:
    return YAML(typ="safe").load((ROOT / "deploy" / name).read_text())


def overrides(command: list[str]) -> list[str]:
    """The values of `--set`, with the defaults of compose's variables."""
    given = [value for flag, value in pairwise(command) if flag == "--set"]
    return [re.sub(r"\$\{(\w+):-(.*)\}", lambda found: found[2], text) for text in given]


@pytest.mark.parametrize("service", ["engine", "driver"])
def test_the_services_commands_fit_the_recipe(service: str) -> None:
    command = read("compose.yaml")["services"][service]["command"]
    assert command[:2] == ["agentrl", {"engine": "serve", "driver": "train"}[service]]
    recipe = load_recipe(str(data_path("recipes", "search-qa")), overrides(command))
    assert recipe.engine.settings["urls"] == ["http://engine:8000"]
    assert recipe.engine.settings["weights_dir"] == "/weights"
    assert recipe.scale.rollout_workers == (4 if service == "driver" else 0)


@pytest.mark.slow
def test_the_ray_cluster_is_one_that_ray_takes() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(read("ray-cluster.yaml")))


def test_the_pipeline_has_every_key() -> None:
    load_pipeline(ROOT / "deploy" / "pipeline.yaml", [])

    def keys(model: Any, prefix: str = "") -> set[str]:
        found = set()
        for name, field in model.model_fields.items():
            inner = field.annotation
            nested = hasattr(inner, "model_fields") and name in ("episode", "engine", "trainer")
            found |= keys(inner, f"{name}.") if nested else {prefix + name}
        return found

    def given(tree: dict[str, Any], prefix: str = "") -> set[str]:
        nested = ("episode", "engine", "trainer")
        return {
            key
            for name, value in tree.items()
            for key in (given(value, f"{name}.") if name in nested else {prefix + name})
        }

    left_out = {"seed", "sandboxes"}
    assert keys(Pipeline) - given(read("pipeline.yaml")) == left_out


def test_the_image_names_what_there_is() -> None:
    dockerfile, ignored = (ROOT / "Dockerfile").read_text(), (ROOT / ".dockerignore").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"/src\[([\w,]+)\]", dockerfile):
        assert set(named.split(",")) <= set(extras)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for name in [
        *wheel["packages"],
        *wheel["force-include"],
        "pyproject.toml",
        "constraints.txt",
        "README.md",
        "LICENSE",
    ]:
        assert f"!{name}\n" in ignored
        assert (ROOT / name).exists()
