"""One event loop for all tests of a folder in a pytest process, where what is dear to start belongs to a loop."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import iscoroutinefunction
from pathlib import Path

import pytest


def share_loop(items: Sequence[pytest.Item], folder: Path) -> None:
    """Has the async tests below a folder run in the loop of the session. Their fixtures must name it as well."""
    for item in items:
        if folder in item.path.parents and iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
