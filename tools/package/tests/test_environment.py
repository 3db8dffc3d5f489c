"""Tests of the environment: whether it can be trained on, and whether recipes find the installed package."""

from importlib import metadata
from pathlib import Path

import agentrl

RECIPE = Path(__file__).parents[1] / "src" / "MODULE"


def test_the_environment_is_certified(tmp_path: Path) -> None:
    """`agentrl env check` on two tasks."""
    certificate = agentrl.check_environment(RECIPE, 2, out=tmp_path)
    assert certificate.certified, [finding for finding in certificate.findings if finding.state == "fail"]


def test_recipes_find_the_package() -> None:
    """After `pip install -e .`: the recipe by its name, and the code of all that pyproject.toml offers."""
    assert agentrl.load_recipe("NAME").name == "NAME"
    for point in metadata.distribution("NAME").entry_points:
        assert point.load() is not None, point
