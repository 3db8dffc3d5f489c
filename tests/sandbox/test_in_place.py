"""Own folders in which the image has files: each sandbox starts with them, and changes its own copy."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.sandbox import engine_images
from agentrl.sandbox.images import ImageError
from agentrl.sandbox.namespace.backend import NamespaceBackend
from agentrl.sandbox.owner import new_label
from agentrl.types.sandbox import Backend, CapabilityMissing, SandboxSpec

pytestmark = pytest.mark.slow

IMAGE = "agentrl-test/testbed"
SPEC = SandboxSpec(image=IMAGE, workdir="/testbed", writable=("/fresh",), memory_mb=256)
SHELL = "cat pkg/code.py deep/*; stat -c '%U %a' pkg pkg/run.sh; ls -A /fresh | wc -l; echo $MARK"
HELD = "x = 1\nlink\nagent 755\nagent 755\n0\nimage\n"


def context() -> bytes:
    """A Dockerfile, and the files of a folder that belongs to root."""
    packed = io.BytesIO()
    files = {
        "Dockerfile": "FROM agentrl/base:latest\nCOPY testbed /testbed\nCOPY testbed /elsewhere\nENV MARK=image\n",
        "testbed/pkg/code.py": "x = 1\n",
        "testbed/pkg/run.sh": "#!/bin/sh\necho run\n",
        "testbed/deep/a": "link\n",
    }
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


@pytest.fixture(scope="module")
def image(docker_host: str) -> Iterator[str]:
    """The image in the engine, and unpacked where the user of the sandboxes can read it."""
    import docker

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as cache:
        patch.setenv("DOCKER_HOST", docker_host)
        Path(cache).chmod(0o755)
        patch.setenv("AGENTRL_CACHE", cache)
        api = docker.from_env().api
        list(api.build(fileobj=io.BytesIO(context()), custom_context=True, tag=IMAGE, rm=True))
        assert api.images(IMAGE), "the image was built"
        engine_images.unpack(IMAGE)
        yield IMAGE
        api.remove_image(f"{IMAGE}:latest", force=True)


async def test_a_folder_of_the_image_is_a_writable_copy_of_its_own(either: Backend, image: str) -> None:
    boxes = await asyncio.gather(*(either.create(SPEC) for _ in range(3)))
    one, other, third = boxes
    assert (await one.exec(SHELL)).text == HELD
    done = await one.exec("echo changed > pkg/code.py && rm deep/a && mv deep moved && echo new > new && ./pkg/run.sh")
    assert (done.text, done.ok) == ("run\n", True)
    assert (await other.exec(SHELL)).text == HELD
    refused = await third.exec("touch /elsewhere/pkg/code.py")
    assert not refused.ok, "other folders of the image stay as they are"


async def test_snapshots_and_forks_hold(either: Backend, image: str) -> None:
    one = await either.create(SPEC.model_copy(update={"snapshots": True}))
    await one.exec("rm deep/a && echo 2 > pkg/code.py && echo kept > new")
    ref = await one.snapshot()
    await one.exec("rm -rf pkg new; echo late > deep/late")
    (fork,) = await one.fork(1)
    assert (await fork.exec("ls -A . deep")).text.split() == [".:", "deep", "deep:", "late"]
    await one.restore(ref)
    assert (await one.exec("ls -A . deep pkg; cat pkg/code.py new; ./pkg/run.sh")).text.split() == [
        ".:", "deep", "new", "pkg", "deep:", "pkg:", "code.py", "run.sh", "2", "kept", "run",
    ]  # fmt: skip


async def test_what_a_sandbox_changes_is_bounded(backend: NamespaceBackend, image: str) -> None:
    box = await backend.create(SPEC.model_copy(update={"disk_mb": 4}))
    full = await box.exec("head -c 8000000 /dev/zero > big")
    assert "No space left" in full.text
    assert (await box.exec("rm big; cat pkg/code.py")).text == "x = 1\n"


async def test_a_machine_without_overlays_copies(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.sandbox.namespace.rootfs.can_layer", lambda own: False)
    backend = NamespaceBackend()
    try:
        box = await backend.create(SPEC)
        assert (await box.exec(SHELL)).text == HELD
        assert (await box.exec("echo changed > pkg/code.py && rm deep/a")).ok
        assert (await (await backend.create(SPEC)).exec(SHELL)).text == HELD
    finally:
        await backend.close()


async def test_a_limit_that_the_engine_cannot_keep_is_refused(docker_backend: Any, image: str) -> None:
    with pytest.raises(CapabilityMissing, match="cannot limit the size of /testbed"):
        await docker_backend.create(SPEC.model_copy(update={"disk_mb": 64}))
    await docker_backend.create(SPEC.model_copy(update={"disk_mb": 64, "workdir": "/work"}))


async def test_the_images_that_were_made_go_with_the_backend(docker_host: str, image: str) -> None:
    import docker

    from agentrl.sandbox.docker.backend import DockerBackend

    api = docker.APIClient(docker_host)
    before = {each["Id"] for each in api.images()}
    backend = DockerBackend(docker_host)
    await backend.create(SPEC)
    assert {each["Id"] for each in api.images()} != before
    await backend.close()
    assert {each["Id"] for each in api.images()} == before


@pytest.mark.usefixtures("image")
def test_an_image_of_the_engine_is_unpacked_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as cache:
        Path(cache).chmod(0o755)
        monkeypatch.setenv("AGENTRL_CACHE", cache)
        NamespaceBackend().preflight(SPEC)
        with pytest.raises(ImageError, match="the engine has no image 'somebody/else:1'") as raised:
            NamespaceBackend().preflight(SandboxSpec(image="somebody/else:1"))
        assert "docker pull somebody/else:1" in str(raised.value)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
        NamespaceBackend().preflight(SPEC)
        with pytest.raises(ImageError, match="not unpacked.*no container engine answers") as raised:
            NamespaceBackend().preflight(SandboxSpec(image="somebody/else:1"))
        assert "agentrl sandbox unpack somebody/else:1" in str(raised.value)


async def test_an_image_is_unpacked_while_other_episodes_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, threads = NamespaceBackend(), []

    def unpacks(name: str) -> Path:
        threads.append(threading.current_thread())
        raise ImageError("not today")

    monkeypatch.setattr("agentrl.sandbox.namespace.backend.rootfs_named", unpacks)
    try:
        await (await backend.create(SandboxSpec())).close()
        with pytest.raises(ImageError):
            await backend.create(SPEC)
        assert threads
        assert threading.main_thread() not in threads
    finally:
        await backend.close()


def test_what_killed_processes_unpacked_is_removed(tmp_path: Path) -> None:
    mine, _, rest = new_label().partition("-")
    dead = f"{mine}-1-{rest.partition('-')[2]}"
    for name in (f".a%3A1~{dead}/etc", f".a%3A1~{dead}.stale/etc", f".a%3A1~{new_label()}/etc", f".b%3A1~{dead}/etc"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / f".a%3A1~{dead}.json").touch()
    engine_images._remove_left_over(tmp_path / "a%3A1")
    left = sorted(os.listdir(tmp_path))
    assert [each.partition("~")[0] for each in left] == [".a%3A1", ".b%3A1"]
    assert dead not in left[0]


def test_an_unpacked_image_reaches_and_lends_nothing_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "root/bin").mkdir(parents=True)
    (tmp_path / "root/etc").symlink_to(tmp_path / "host")
    (tmp_path / "root/bin/su").touch()
    (tmp_path / "root/bin/su").chmod(0o6755)
    (tmp_path / "root/bin/sh").symlink_to("su")
    engine_images._add(tmp_path / "root", "etc/passwd", "agent:x:1000:1000::/:/bin/sh")
    assert not os.listdir(tmp_path / "host")
    engine_images._take_rights(tmp_path / "root")
    assert (tmp_path / "root/bin/su").stat().st_mode & 0o7777 == 0o755
