"""The filter of system calls where libseccomp is missing or fails; `test_isolation.py` tries the calls themselves."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest

from agentrl.sandbox.linux.process_mark import ALLOW, mark_filter, returns
from agentrl.sandbox.linux.seccomp import filter_program, toolbox_filter


@pytest.fixture(autouse=True)
def uncached_filter() -> Iterator[None]:
    """Clears the cached filter before and after the test."""
    filter_program.cache_clear()
    yield
    filter_program.cache_clear()


class Broken:
    """A libseccomp that cannot export its filter."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            self.calls.append(name)
            return -1 if name == "seccomp_export_bpf" else 1

        return call


def test_without_libseccomp_marks_alone_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert filter_program() is None
    assert toolbox_filter() == mark_filter() + returns(ALLOW)


def test_a_filter_that_cannot_be_exported_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Broken()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert filter_program() is None
    assert library.calls[-2:] == ["seccomp_export_bpf", "seccomp_release"]
