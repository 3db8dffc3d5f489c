"""`import agentrl` is light, and has what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import agentrl


def test_it_loads_no_library() -> None:
    code = "import sys, agentrl; print(*{name.split('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"agentrl", "__main__"}


@pytest.mark.parametrize("name", agentrl.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(agentrl, name).__name__ == name or name == "Message"
    assert name in dir(agentrl)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'agentrl' has no attribute 'Tol'"):
        agentrl.Tol  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Tol'"):
        from agentrl import Tol  # type: ignore[attr-defined]  # noqa: F401
