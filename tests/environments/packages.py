"""What an environment's tests need."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

JAVA = ("scienceworld", "textworld_express")


def needs(package: str) -> None:
    """Skips the test if the environment's package, or the Java that it runs in, is missing."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: make setup")
    if package in JAVA and shutil.which("java") is None:
        pytest.skip("Java is not installed: make programs, as root")
