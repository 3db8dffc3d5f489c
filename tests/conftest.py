"""Property tests: other examples in every run, but in CI the same ones, so that a red run can be repeated. No example
has a deadline: the machine may be busy.

One number of threads for every process that a test starts: sums of two threads and of one differ in their last bits.

Files of few, long tests come first: `make test` hands out whole files, and none of these may be the last (SLOW)."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "here")

SLOW = (
    "tests/commands/",
    "tests/distributed/",
    "tests/sandbox/test_conformance.py",
    "tests/sandbox/test_sabotage.py",
    "tests/sandbox/test_outages.py",
    "tests/sandbox/test_recipes_on_docker.py",
    "tests/engines/",
    "tests/chat/test_real_tokenizers.py",
    "tests/reporters/",
    "tests/rewards/test_reward_recipes.py",
    "tests/train/",
)
"""Files and folders whose tests take longest, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((k for k, part in enumerate(SLOW) if item.nodeid.startswith(part)), len(SLOW)))


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Unlike `tmp_path`, one that the sandbox's user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
