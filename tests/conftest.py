"""Property tests: other examples in every run, but in CI the same ones, so that a red run can be repeated. No example
has a deadline: the machine may be busy.

One number of threads for every process that a test starts: sums of two threads and of one differ in their last bits."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub is imported
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - 15 by default: beside busy tests its workers would hardly start

import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.plugins import costs, forks, saved, selection
from tests.stalls import no_stalls

__all__ = ["no_stalls"]

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_addoption(parser: pytest.Parser) -> None:
    costs.pytest_addoption(parser)
    selection.pytest_addoption(parser)
    forks.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    costs.register(config)
    selection.register(config)
    forks.register(config)
    saved.register()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selection.of_family(config, items)
    costs.costliest_first(items)


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    """Undoes what a test, or a module that it imports, did to the environment of this process."""
    before = dict(os.environ)
    yield
    for name in {*before, *os.environ} - {"PYTEST_CURRENT_TEST"}:
        if os.environ.get(name) != before.get(name):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Unlike `tmp_path`, one that the sandbox's user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
