"""Pipelines from YAML files, and predictions for several sizes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from agentrl.config.loader import settings_of
from agentrl.simulate.pipeline import Pipeline
from agentrl.simulate.simulator import Prediction, predict
from agentrl.types.errors import RecipeError, nearest


def simulate(path: Path, overrides: list[str], factors: list[int]) -> list[Prediction]:
    """Predictions for the pipeline of a file, scaled by each of `factors`.

    Raises:
        RecipeError: the file, an override or a factor is wrong.
    """
    pipeline = load_pipeline(path, overrides)
    if min(factors) < 1:
        raise RecipeError(f"{min(factors)} times is nothing", place="--times", remedy="1, 8, 64")
    return [predict(pipeline.times(factor)) for factor in factors]


def load_pipeline(path: Path, overrides: list[str]) -> Pipeline:
    """A pipeline from YAML.

    Raises:
        RecipeError: the data are not a pipeline; names the key and the problem.
    """
    try:
        tree = YAML(typ="safe").load(path.read_text()) or {}
        return Pipeline.model_validate(_merged(tree, settings_of(overrides)))
    except MarkedYAMLError as error:
        raise RecipeError(f"not valid YAML: {error.problem or error.context}", place=str(path)) from None
    except ValidationError as error:
        raise _explained(error, path) from None


def _merged(tree: Any, over: Any) -> Any:
    if not isinstance(tree, dict) or not isinstance(over, dict):
        return over
    return {**tree, **{key: _merged(tree[key], value) if key in tree else value for key, value in over.items()}}


def _explained(error: ValidationError, path: Path) -> RecipeError:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] != "extra_forbidden":
        return RecipeError(f"{key}: {first['msg']}, found {first['input']!r}", place=str(path))
    model: Any = Pipeline
    for part in first["loc"][:-1]:
        model = model.model_fields[part].annotation
    return RecipeError(
        f"{key}: unknown key", place=str(path), remedy=nearest(str(first["loc"][-1]), model.model_fields)
    )
