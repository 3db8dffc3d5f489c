"""What has moved: the error names the new place, and the new place is there."""

import importlib
import importlib.util
from pathlib import Path

import pytest

import agentrl  # installs the finder
from agentrl.registry.moved import GONE, MOVED
from agentrl.registry.references import load_object
from agentrl.types.errors import RecipeError


@pytest.mark.parametrize("new", sorted(MOVED.values()))
def test_the_new_place_is_there(new):
    package, _, name = new.rpartition(".")
    is_class = name[0].isupper()
    assert hasattr(importlib.import_module(package), name) if is_class else importlib.util.find_spec(new) is not None


@pytest.mark.parametrize("old", sorted(set(MOVED) - {name for names in GONE.values() for name in names}))
def test_the_old_name_says_the_new_one(old):
    with pytest.raises(ImportError, match=f"{old} is now {MOVED[old]}$"):
        importlib.import_module(old)


@pytest.mark.parametrize("package", sorted(GONE))
def test_a_package_that_is_gone_names_all_its_modules(package):
    with pytest.raises(ImportError) as error:
        importlib.import_module(GONE[package][0])
    caches = Path(agentrl.__file__).parent / package.partition(".")[2]  # which an update of a checkout leaves
    for old in GONE[package][:1] if caches.exists() else GONE[package]:
        assert f"{old} is now {MOVED[old]}" in str(error.value)


def test_from_import_says_it_too():
    with pytest.raises(ImportError, match="agentrl.task is now agentrl.types.task"):
        from agentrl import task  # noqa: F401
    with pytest.raises(ImportError, match="agentrl.curriculum.Lesson is now agentrl.curriculum.CreditedEpisode"):
        from agentrl.curriculum import Lesson  # type: ignore[attr-defined]  # noqa: F401


def test_a_recipe_that_names_a_moved_module(tmp_path):
    with pytest.raises(RecipeError, match=r"agentrl\.train\.row is now agentrl\.types\.sample"):
        load_object("agentrl.train.row:Row", tmp_path)


def test_other_missing_modules_are_missing_as_ever():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("agentrl.nothing")
    assert importlib.util.find_spec("agentrl.nothing") is None
    assert agentrl.__version__
