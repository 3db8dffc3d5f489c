"""Small trainings without their learning curve: to draw it takes longer than to train. tests/view draws curves.

from tests.lean import no_curves
__all__ = ["no_curves"]  # in the conftest.py of a room whose tests train in the test's own process
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def no_curves() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentrl.view.curves.learning_curve", lambda *given, **settings: None)
        yield
