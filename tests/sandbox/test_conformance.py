"""The conformance suite against each backend of this machine."""

from __future__ import annotations

import pytest

from agentrl.sandbox.conformance import Arena, checks, run_check
from agentrl.sandbox.namespace import NamespaceBackend


@pytest.mark.parametrize("name", checks())
async def test_namespace(backend: NamespaceBackend, name: str) -> None:
    finding = await run_check(checks()[name], Arena(backend, "namespace"))
    if finding.status == "not claimed":
        pytest.skip(finding.detail)
    assert finding.status == "pass", finding.detail
