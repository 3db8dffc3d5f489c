"""`import agentrl` is light, and has what it says."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

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


def test_functions_and_rooms_have_names_of_their_own() -> None:
    """`agentrl.train` is a plain function, whatever of the package is imported, before or after."""
    rooms = {room.name for room in Path(str(agentrl.__file__)).parent.iterdir() if (room / "__init__.py").is_file()}
    assert rooms & set(agentrl.__all__) == set()
    functions = [getattr(agentrl, name) for name in ("rollout", "train", "credit")]
    assert all(inspect.isfunction(each) for each in functions)
    with pytest.raises(RecipeError, match="there is no recipe 'nowhere'"):
        agentrl.train("nowhere")


@pytest.mark.slow
def test_training_loads_what_draws_its_curve_at_its_end() -> None:
    code = "import sys, agentrl; agentrl.train; import agentrl.view.curves; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"matplotlib", "torch", "transformers"}.isdisjoint(loaded)


@pytest.mark.slow
def test_it_changes_nothing_of_python() -> None:
    code = "import sys; before = list(sys.meta_path); import agentrl; agentrl.train; assert sys.meta_path == before"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert [name for name, each in sys.modules.items() if name.startswith("agentrl") and callable(each)] == []


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'agentrl' has no attribute 'Tol'"):
        agentrl.Tol  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Tol'"):
        from agentrl import Tol  # type: ignore[attr-defined]  # noqa: F401
