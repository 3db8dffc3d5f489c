"""An image of a container engine becomes a folder. A fake stands in for the engine, which `test_in_place.py` asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.sandbox import engine_images
from agentrl.sandbox.engine_images import image_env, unpack
from agentrl.sandbox.images import ImageError

docker = pytest.importorskip("docker", reason="the package docker is missing: pip install 'agentrl-framework[docker]'")


class Engine:
    """An engine with one image."""

    def __init__(self) -> None:
        self.id, self.environment = "sha256:one", ["LANG=C"]
        self.containers: list[str] = []

    def ping(self) -> bool:
        return True

    def inspect_image(self, name: str) -> dict[str, Any]:
        return {"Id": self.id, "Config": {"Env": self.environment}}

    def create_container(self, id: str, **settings: Any) -> dict[str, str]:
        self.containers.append(id)
        return {"Id": id}

    def export(self, id: str) -> Iterator[bytes]:
        return iter([bytes(1 << 20)] * 8)

    def remove_container(self, id: str, **settings: Any) -> None:
        self.containers.remove(id)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    made = Engine()
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    monkeypatch.setattr(docker, "from_env", lambda **settings: type("Client", (), {"api": made}))
    return made


def test_an_image_is_unpacked_again_when_it_has_changed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[str] = []

    def export(api: Any, id: str, target: Path, marks: dict[str, str]) -> None:
        unpacked.append(id)
        (target / id).touch()

    monkeypatch.setattr(engine_images, "_export", export)
    said: list[str] = []
    place = unpack("task", say=said.append)
    assert unpack("task:latest", say=said.append) == place
    assert said == [f"task: {place}", f"task:latest: unpacked already, {place}"]
    assert (unpacked, image_env(str(place))) == (["sha256:one"], {"LANG": "C"})

    engine.id, engine.environment = "sha256:two", ["LANG=C.UTF-8"]
    assert unpack("task", say=said.append) == place
    assert [path.name for path in place.iterdir()] == ["sha256:two"], "nothing of the older one is left"
    assert image_env(str(place)) == {"LANG": "C.UTF-8"}
    assert {path.name for path in place.parent.iterdir()} == {place.name, f"{place.name}.json"}


@pytest.mark.slow
def test_files_that_cannot_be_unpacked_leave_nothing_and_say_why(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that unpacks ends early, as on a full disk."""
    tar = tmp_path / "bin/tar"
    tar.parent.mkdir()
    tar.write_text("#!/bin/sh\necho 'tar: no space left' >&2\nexit 2\n")
    tar.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tar.parent}:/usr/bin:/bin")
    with pytest.raises(ImageError, match="its files cannot be unpacked: tar: no space left"):
        unpack("task", say=lambda line: None)
    assert engine.containers == []
    assert list((tmp_path / "unpacked").iterdir()) == []
