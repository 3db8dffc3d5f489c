"""The steps of a build of an image. A fake stands in for the programs, which `test_images.py` runs."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from agentrl.sandbox import images
from agentrl.types.reporter import working_for
from tests.works import Works


@pytest.fixture
def definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of two definitions: `low`, of Debian, and `high`, which extends it."""
    folder = tmp_path / "sandboxes"
    files = {
        "install.sh": "the common script",
        "low/Dockerfile": "FROM debian:trixie-slim\n",
        "low/packages.txt": "python3\n",
        "high/Dockerfile": "FROM agentrl/low\n",
        "high/requirements.txt": "numpy\n",
        "high/build.sh": "the script of high",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(images, "data_path", tmp_path.joinpath)
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    return folder


class Steps:
    """Stands in for the programs of a build: does what each leaves behind, and notes its name."""

    def __init__(self, broken: str = "") -> None:
        self.done: list[str] = []
        self.pip: list[str] = []
        self._broken = broken

    def __call__(self, argv: list[str], step: str, *lock: int, lines: int | None = None, guess: int = 0) -> None:
        self.done.append(step)
        if step == self._broken:
            raise images.ImageError("failed with exit code 1", place=step)
        if argv[0] == "debootstrap":
            suite, root = argv[2], Path(argv[3])
            for name, text in {"usr/bin/python3.13": "", "etc/resolv.conf": "of nobody", "etc/suite": suite}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
        elif argv[0] == "cp":
            assert lines == images._files_in(Path(argv[-2]))
            shutil.copytree(argv[-2], argv[-1])
        elif "pip" in argv:
            self.pip = argv
        else:
            root, recipe, script = map(Path, argv[-3:])
            self.done.append((recipe / script).read_text())
            if script.name == "install.sh":
                assert (root / "etc/resolv.conf").read_text() == Path("/etc/resolv.conf").read_text()
            (root / f"{script}-ran").touch()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps()
    monkeypatch.setattr(images, "_run", made)
    monkeypatch.setattr(images, "_check_host", lambda: None)
    return made


def cached() -> set[str]:
    return {path.name for path in images.cache_root().iterdir()}


@pytest.mark.usefixtures("definitions")
def test_an_image_is_built_after_its_parent_by_the_scripts_of_its_definition(steps: Steps) -> None:
    said: list[str] = []
    place = images.build("high", mirror="http://mirror", say=said.append)
    assert steps.done == [
        *("low: debootstrap", "low: packages", "the common script"),
        *("high: copy", "high: pip download", "high: build.sh", "the script of high"),
    ]
    assert steps.pip[steps.pip.index("--python-version") + 1] == "3.13", "wheels are those of the image's Python"
    files = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert files == {"usr/bin/python3.13", "etc/resolv.conf", "etc/suite", "install.sh-ran", "build.sh-ran"}
    assert (place / "etc/suite").read_text() == "trixie"
    assert (place / "etc/resolv.conf").read_text() == "", "the host's name server stays here"
    assert place.stat().st_mode & 0o777 == 0o755
    parent = images.built_rootfs("low")
    assert cached() == {"low.lock", "high.lock", parent.name, place.name}
    assert said[0] == "low: debootstrap trixie from http://mirror"
    assert f"high: starts from {parent}" in said
    assert said[-1] == f"high: {place}"

    steps.done.clear()
    assert images.build("high", say=said.append) == place
    assert (steps.done, said[-1]) == ([], f"high: built already, {place}")


@pytest.mark.usefixtures("definitions")
def test_a_failed_step_leaves_what_was_built_before_it_alone(monkeypatch: pytest.MonkeyPatch, steps: Steps) -> None:
    low = images.build("low", say=lambda line: None)
    steps._broken = "high: build.sh"
    with pytest.raises(images.ImageError, match=r"high: build.sh: failed with exit code 1"):
        images.build("high", say=lambda line: None)
    assert cached() == {"low.lock", "high.lock", low.name}


@pytest.mark.usefixtures("definitions")
def test_what_a_killed_build_left_is_removed_by_the_next(steps: Steps) -> None:
    left = images.cache_root() / ".low-0123456789ab"
    left.mkdir(parents=True)
    images.build("low", say=lambda line: None)
    assert not left.exists()


@pytest.mark.usefixtures("definitions")
def test_who_waited_for_the_build_of_another_process_takes_it(monkeypatch: pytest.MonkeyPatch, steps: Steps) -> None:
    place = images.place_of(images.image_named("low"))

    @contextmanager
    def built_meanwhile(lock: Path) -> Iterator[int]:
        assert lock.name == "low.lock"
        place.mkdir(parents=True)
        yield 0

    monkeypatch.setattr(images, "_locked", built_meanwhile)
    assert images.build("low", say=lambda line: None) == place
    assert steps.done == []


def test_a_dockerfile_that_starts_from_nothing_is_refused(definitions: Path) -> None:
    (definitions / "low/Dockerfile").write_text("RUN true\n")
    with pytest.raises(images.ImageError, match=r"low/Dockerfile: has no FROM[\s\S]*FROM debian:bookworm-slim"):
        images.image_named("low")


@pytest.mark.usefixtures("definitions")
def test_without_root_the_remedy_is_the_same_command_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["agentrl", "sandbox", "build", "low"])
    with pytest.raises(images.ImageError, match="needs root") as refused:
        images.build("low", say=lambda line: None)
    assert refused.value.remedy == f"sudo -E {sys.executable} -m agentrl.cli sandbox build low"
    assert not images.cache_root().exists()


class Program:
    """Stands in for `subprocess.Popen`; prints a line, and is then interrupted."""

    def __init__(self, lines: Callable[[], Iterator[bytes]]) -> None:
        self.argv: list[str] = []
        self.killed = False
        self.returncode = 0
        self.stdout: Any = lines()

    def __call__(self, argv: list[str], **streams: Any) -> Self:
        self.argv = argv
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Waits, as that of a real one."""

    def kill(self) -> None:
        self.killed = True


def test_a_step_ends_with_the_build_that_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> Iterator[bytes]:
        yield b"one\n"
        raise KeyboardInterrupt

    program = Program(lines)
    monkeypatch.setattr(subprocess, "Popen", program)
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), working_for(works := Works()):
        images._run(["cp", "a", "b"], "low: copy", lines=3)
    assert program.killed
    assert works.of("low: copy") == [(0, 3), (1, 3)]


def test_what_the_engine_says_of_a_refused_import_is_said(
    definitions: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps
) -> None:
    docker = pytest.importorskip(
        "docker", reason="the package docker is missing: pip install 'agentrl-framework[docker]'"
    )
    images.build("low", say=lambda line: None)

    class Engine:
        def ping(self) -> bool:
            return True

        def import_image_from_stream(self, stream: Iterator[bytes], repository: str, **rest: Any) -> str:
            assert (b"".join(stream), repository) == (b"an archive", "agentrl/low")
            return '{"error": "no space left on device"}'

    def engine(**settings: Any) -> Any:
        return type("Client", (), {"api": Engine()})

    tar = Program(lambda: iter(()))
    tar.stdout = io.BytesIO(b"an archive")
    monkeypatch.setattr(docker, "from_env", engine)
    monkeypatch.setattr(subprocess, "Popen", tar)
    with pytest.raises(images.ImageError, match="the engine did not take low: .*no space left on device"):
        images.import_image("low", say=lambda line: None)
