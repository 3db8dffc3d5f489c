"""`import agentrl` is light, and has what it says."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import agentrl
from agentrl.types.errors import RecipeError


@pytest.mark.slow
def test_it_loads_no_library() -> None:
    code = "import sys, agentrl; print(*{name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"agentrl", "__main__"}


@pytest.mark.parametrize("name", agentrl.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(agentrl, name).__name__ in (name, f"agentrl.{name}") or name == "Message"
    assert name in dir(agentrl)


@pytest.mark.parametrize("name", ["rollout", "train"])
def test_a_package_is_also_the_function_of_its_name(name: str) -> None:
    """Whatever of it is imported, before or after."""
    function = getattr(importlib.import_module(f"agentrl.api.{name}"), name)
    package = getattr(agentrl, name)
    assert inspect.signature(package) == inspect.signature(function)
    with pytest.raises(RecipeError, match="there is no recipe 'nowhere'"):
        package("nowhere")
    import agentrl.rollouts.session as session

    assert sys.modules["agentrl.rollouts.session"] is session
    assert getattr(agentrl, name) is package is sys.modules[f"agentrl.{name}"]


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'agentrl' has no attribute 'Tol'"):
        agentrl.Tol  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Tol'"):
        from agentrl import Tol  # type: ignore[attr-defined]  # noqa: F401
