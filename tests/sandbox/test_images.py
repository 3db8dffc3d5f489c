"""Image definitions, and a real build of the smallest (kept in the cache from run to run)."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentrl.sandbox import images
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.types.paths import data_path
from agentrl.types.reporter import working_for
from agentrl.types.sandbox import CapabilityMissing, SandboxSpec
from tests.sandbox.test_backend import processes_with
from tests.waiting import running_program, until
from tests.works import Works

if TYPE_CHECKING:
    from agentrl.sandbox.docker.backend import DockerBackend

needs_debootstrap = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("debootstrap") is None, reason="building an image needs root and debootstrap"
)


def test_every_definition_is_whole() -> None:
    assert images.image_names() == ["base", "browser", "desktop", "python", "swe", "testbed"]
    for name in images.image_names():
        image = images.image_named(name)
        dockerfile = (image.folder / "Dockerfile").read_text()
        assert image.suite == "bookworm"
        if (image.folder / "build.sh").exists():
            assert "build.sh" in dockerfile
            continue
        packages = (image.folder / "packages.txt").read_text().splitlines()
        assert [line for line in packages if line and not line.startswith("#")], name
        assert f"COPY install.sh {name}/ " in dockerfile
        assert "install.sh" in dockerfile.splitlines()[-1]
    assert images.image_named("swe").parent == images.image_named("agentrl/python:latest")


def test_a_build_goes_stale_with_its_definition_or_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(data_path("sandboxes"), tmp_path / "sandboxes")
    monkeypatch.setattr(images, "data_path", lambda *parts: tmp_path.joinpath(*parts))
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    before = {name: images.image_named(name).digest for name in images.image_names()}
    images.place_of(images.image_named("swe")).mkdir(parents=True)
    assert images.built_rootfs("swe").is_dir()
    with open(tmp_path / "sandboxes/python/packages.txt", "a") as file:
        file.write("python3-yaml\n")
    changed = {name for name in before if images.image_named(name).digest != before[name]}
    assert changed == {"python", "swe", "testbed"}
    with open(tmp_path / "sandboxes/testbed/history.py", "a") as file:
        file.write("\n")
    assert images.image_named("testbed").digest not in (before["testbed"], images.image_named("swe").digest)
    with pytest.raises(images.ImageError, match=r"older definition[\s\S]*agentrl sandbox build swe"):
        images.built_rootfs("swe")


@pytest.mark.slow
@pytest.mark.family("backends")
def test_an_image_that_is_not_there_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    backend = NamespaceBackend()
    with pytest.raises(images.ImageError, match="'agentrl/pyhton'[\\s\\S]*did you mean 'python'"):
        backend.preflight(SandboxSpec(image="agentrl/pyhton"))
    with pytest.raises(images.ImageError, match=r"'swe' is not built[\s\S]*agentrl sandbox build swe"):
        backend.preflight(SandboxSpec(image="agentrl/swe"))
    with pytest.raises(CapabilityMissing, match="image or rootfs"):
        backend.preflight(SandboxSpec(image="agentrl/swe", rootfs="/"))


def test_without_debootstrap_the_remedy_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(images.ImageError, match="apt-get install -y debootstrap"):
        images.build("base")
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.family("backends")
@needs_debootstrap
def test_a_build_that_fails_leaves_nothing_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    with pytest.raises(images.ImageError, match=r"base: debootstrap: failed with exit code \d+:[\s\S]*127\.0\.0\.1"):
        images.build("base", mirror="http://127.0.0.1:9/debian", say=lambda line: None)
    assert [path.name for path in (tmp_path / "rootfs").iterdir()] == ["base.lock"]


@pytest.mark.slow
@pytest.mark.family("backends")
@needs_debootstrap
def test_a_step_tells_how_far_it_is_and_the_next_time_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    (tmp_path / "rootfs").mkdir()
    for guess, total in ((0, 0), (9, 3)):
        with working_for(works := Works()):
            images._run(["sh", "-c", "echo one; echo two >&2; echo three"], "base: packages", guess=guess)
        assert works.of("base: packages")[:3] == [(0, total), (1, total), (2, total)]
        assert works.of("base: packages")[-1] == (3, 3)
    assert not images.is_built(images.image_named("base"))
    with pytest.raises(images.ImageError, match="'base' is not built"):
        images.built_rootfs("base")
    with pytest.raises(images.ImageError, match=r"base: packages: failed with exit code 3:\nlost"), working_for(works):
        images._run(["sh", "-c", "echo lost >&2; exit 3"], "base: packages")
    with working_for(works := Works()):
        images._run(["true"], "silent", guess=9)
    assert works.told == [("silent", 0, 9), ("silent", 1, 1)]


@pytest.mark.slow
@pytest.mark.family("backends")
@needs_debootstrap
def test_an_archive_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    root = images.place_of(images.image_named("base"))
    (root / "usr").mkdir(parents=True)
    (root / "usr/file").write_text("x")
    with working_for(works := Works()):
        images.archive("base", tmp_path / "base.tar")
    assert works.of("base: archive") == [(0, 3), (1, 3), (2, 3), (3, 4), (3, 3)]
    told = list(images._told(io.BytesIO(bytes(5 << 19)), "to the engine", 5 << 19))
    assert sum(map(len, told)) == 5 << 19


@pytest.mark.slow
@pytest.mark.family("backends")
@needs_debootstrap
def test_a_killed_build_leaves_no_mount_and_no_process(tmp_path: Path) -> None:
    step = f"mount -t tmpfs tmpfs {tmp_path} && exec sleep 98772"
    code = f"from agentrl.sandbox import images; images._run(['sh', '-c', {step!r}], 'step')"
    with running_program([sys.executable, "-c", code]):
        until(lambda: processes_with("sleep\x0098772"))
    until(lambda: not processes_with("98772"))
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.slow
@pytest.mark.family("backends")
@needs_debootstrap
def test_the_next_build_clears_away_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    code = "from agentrl.sandbox.images import build; build('base')"
    with running_program([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as builder:
        until(lambda: list(tmp_path.glob("rootfs/.base-*/var")) or builder.poll() is not None)
    assert list(tmp_path.glob("rootfs/.base-*"))
    with pytest.raises(images.ImageError, match="base: debootstrap"):
        images.build("base", mirror="http://127.0.0.1:9/debian", say=lambda line: None)
    assert [path.name for path in (tmp_path / "rootfs").iterdir()] == ["base.lock"]


@pytest.mark.slow
@pytest.mark.family("backends")
@needs_debootstrap
@pytest.mark.timeout(600)
async def test_the_smallest_image_is_built_and_runs(backend: NamespaceBackend, tmp_path: Path) -> None:
    said: list[str] = []
    root = images.build("base", say=said.append)
    assert images.build("base", say=said.append) == root == images.built_rootfs("agentrl/base:latest")
    assert said[-1].startswith("base: built already")
    sandbox = await backend.create(SandboxSpec(image="agentrl/base"))
    result = await sandbox.exec(
        "grep -c bookworm /etc/os-release; id -un; pwd; touch /usr/x 2>/dev/null || echo sealed"
    )
    assert result.text.splitlines()[1:] == ["agent", "/work", "sealed"]
    assert not (await sandbox.exec("command -v git")).ok
    assert (await (await sandbox.python()).run("import sys; sys.version_info >= (3, 9)")).value == "True"
    images.archive("base", tmp_path / "base.tar.gz")
    listed = subprocess.run(
        ["tar", "-tzf", tmp_path / "base.tar.gz"], capture_output=True, text=True, check=True
    ).stdout
    assert "./usr/bin/bash\n" in listed
    assert [path.name for path in tmp_path.iterdir()] == ["base.tar.gz"]


@pytest.mark.slow
@pytest.mark.family("backends")
@needs_debootstrap
@pytest.mark.timeout(600)
async def test_a_container_engine_takes_the_same_image(
    docker_host: str, docker_backend: DockerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.build("base", say=lambda line: None)
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    monkeypatch.setattr(images, "REPOSITORY", "agentrl-test/")  # the other tests have an agentrl/base of their own
    assert images.import_image("base", say=lambda line: None).startswith("sha256:")
    try:
        async with await docker_backend.create(SandboxSpec(image="agentrl-test/base:latest")) as sandbox:
            result = await sandbox.exec(
                "grep -c bookworm /etc/os-release; pwd; touch /usr/x 2>/dev/null || echo sealed"
            )
            assert result.text.splitlines()[1:] == ["/work", "sealed"]
    finally:
        docker_backend.engine.ask(lambda api: api.remove_image("agentrl-test/base:latest", force=True))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(images.NoEngine, match="no container engine answers"):
        images.import_image("base")
