"""The methods in recipes/methods: each fires, bites and trains, and fails its proofs when its control takes it out.

Every CI trains one method of some groups. The family `methods` (`make test-methods`) trains all, and the mixes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.api.recipe_check import check
from agentrl.api.shipped import shipped_methods
from agentrl.config.files import method_files, method_name
from agentrl.config.loader import load_recipe
from agentrl.config.profiles import CONTROL
from tests.methods.mixes import WITHOUT
from tests.methods.proofs import Method, acts, groups

GROUPS = groups()
METHODS = [method for group in GROUPS.values() for method in group]
_KINDS = {
    "credit": "salt",
    "losses": "pacs",
    "rewards": "laser-d",
    "curricula": "scaling-inter",
    "search": "reseek",
    "several agents": "critique-rl",
    "calls and retries": "ufo",
    "code": "g-ra",
    "dialogue": "sotopia",
    "screens": "mobile-r1",
    "text worlds": "gitm",
}
IN_CI = [method for method in METHODS if method.name in _KINDS.values() or method in GROUPS["mixes"]]
"""Methods that every CI trains: one of each kind, and the mixes."""


def name_of(method: Method) -> str:
    return method.name


def test_every_method_is_proven_once() -> None:
    assert sorted(method.name for method in METHODS) == sorted(map(method_name, method_files()))
    for each in shipped_methods():
        assert each.base
        assert each.acts
        assert "arXiv" in each.paper


@pytest.mark.parametrize("path", method_files(), ids=method_name)
def test_the_recipe_of_a_method_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40


@pytest.mark.family("methods")
@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_a_method_and_its_control_hold_as_shipped(method: Method) -> None:
    for profile in (None, CONTROL):
        assert check(method.name, [], profile).warnings == []


@pytest.mark.slow  # some start a helper process or a sandbox
@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_a_method_bites(method: Method) -> None:
    assert method.bites(method.recipe()) == method.expected


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", IN_CI, ids=name_of)
def test_a_method_of_each_part_acts_and_its_control_does_not(method: Method, tmp_path: Path) -> None:
    acts(method, tmp_path)


@pytest.mark.family("methods")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_a_method_acts_and_its_control_does_not(method: Method, tmp_path: Path) -> None:
    acts(method, tmp_path)


@pytest.mark.parametrize("method", GROUPS["mixes"], ids=name_of)
def test_each_part_of_a_mix_bites_by_itself(method: Method) -> None:
    """Without one part, what that part does is missing, and what the others do is not."""
    assert WITHOUT[method.name].keys() == method.expected.keys()
    for part, overrides in WITHOUT[method.name].items():
        found = method.bites(load_recipe(method.name, [*method.small, *overrides]))
        assert [name for name, value in found.items() if value != method.expected[name]] == [part]
