"""The conformance suite against each backend of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentrl.sandbox.conformance import Arena, checks, run_check
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.types.sandbox import Backend

pytestmark = [pytest.mark.slow, pytest.mark.family("backends")]

if TYPE_CHECKING:
    from agentrl.sandbox.docker.backend import DockerBackend


async def passes(name: str, backend: Backend, address: str) -> None:
    finding = await run_check(checks()[name], Arena(backend, address))
    assert finding.status == "pass", finding.detail


@pytest.mark.parametrize("name", checks())
async def test_namespace(backend: NamespaceBackend, name: str) -> None:
    await passes(name, backend, "namespace")


@pytest.mark.parametrize("name", checks())
async def test_docker(docker_backend: DockerBackend, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_backend.engine.host)  # for checks that open it from another process
    await passes(name, docker_backend, "docker")
