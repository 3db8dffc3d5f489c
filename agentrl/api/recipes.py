"""Recipes as arguments of the Python API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.config import loader
from agentrl.config.recipe import Recipe

AnyRecipe = str | Path | Recipe | Mapping[str, Any]
"""A YAML file, a folder with `recipe.yaml`, the name of a shipped recipe, a loaded one, or the sections of one."""

AnyProfile = str | Path | None
"""The name of a shipped profile (`laptop`, `gpu`, `node`), a YAML file, or None."""

Overrides = Sequence[str] | Mapping[str, Any]
"""`["train.lr=1e-5"]` as on the command line, or `{"train.lr": 1e-5}`."""


def load_recipe(name: AnyRecipe, overrides: Overrides = (), profile: AnyProfile = None) -> Recipe:
    """Loads and checks a recipe: what `agentrl.load_recipe` is. Arguments and errors are those of `given_recipe`."""
    return given_recipe(name, overrides, profile)


def given_recipe(recipe: AnyRecipe, overrides: Overrides = (), profile: AnyProfile = None) -> Recipe:
    """Loads a recipe by its path or name, or takes a loaded one, or its sections as a mapping; applies a profile, and
    then overrides.

    Relative references in a mapping (`./task.py:Name`) are relative to the working folder.

    Raises:
        RecipeError: the recipe or the profile cannot be loaded, or an override is wrong.
    """
    if isinstance(recipe, Recipe) and not overrides and not profile:
        return recipe
    named = str(profile) if profile else None
    return loader.load_recipe(str(recipe) if isinstance(recipe, Path) else recipe, as_lines(overrides), named)


def as_lines(overrides: Overrides) -> list[str]:
    """`key=value` lines."""
    if isinstance(overrides, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    return list(overrides)
