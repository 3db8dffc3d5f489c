"""Real sandboxes: these tests need bubblewrap, and those of containers an engine or root to start one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from agentrl.sandbox.namespace.backend import NamespaceBackend, NamespaceSandbox
from agentrl.types.sandbox import Backend, SandboxSpec
from tests.sandbox import dockerd

if TYPE_CHECKING:
    from agentrl.sandbox.docker.backend import DockerBackend


@pytest.fixture(scope="session")
def open_backend() -> Iterator[NamespaceBackend]:
    backend = NamespaceBackend()
    yield backend
    asyncio.run(backend.close())


@pytest.fixture
async def backend(open_backend: NamespaceBackend) -> AsyncIterator[NamespaceBackend]:
    yield open_backend
    await asyncio.gather(*(sandbox.close() for sandbox in list(open_backend._alive)))


@pytest.fixture
async def sandbox(backend: NamespaceBackend) -> NamespaceSandbox:
    return await backend.create(SandboxSpec(), label="test")


@pytest.fixture(scope="session")
def docker_host(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """The address of a container engine that has the image `agentrl/base`."""
    pytest.importorskip("docker", reason="the package docker is missing: pip install 'agentrl-framework[docker]'")
    base = tmp_path_factory.getbasetemp()
    if not dockerd.usable() and (why := dockerd.why_not()):
        pytest.skip(why)
    with dockerd.engine(base if worker_id == "master" else base.parent) as host:
        yield host


@pytest.fixture(scope="session")
def open_docker(docker_host: str) -> Iterator[DockerBackend]:
    from agentrl.sandbox.docker.backend import DockerBackend

    backend = DockerBackend(docker_host)
    yield backend
    asyncio.run(backend.close())


@pytest.fixture
async def docker_backend(open_docker: DockerBackend) -> AsyncIterator[DockerBackend]:
    yield open_docker
    await asyncio.gather(*(sandbox.close() for sandbox in list(open_docker._alive)))


@pytest.fixture(params=["namespace", "docker"])
def either(request: pytest.FixtureRequest) -> Backend:
    """Each backend."""
    fixture = {"namespace": "backend", "docker": "docker_backend"}[request.param]
    made: Backend = request.getfixturevalue(fixture)
    return made
