"""Real sandboxes: these tests need bubblewrap, as the backend does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from agentrl.sandbox.contract import SandboxSpec
from agentrl.sandbox.namespace import NamespaceBackend, NamespaceSandbox


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
