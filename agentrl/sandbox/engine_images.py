"""Images of a container engine as root file systems, for the `namespace` backend.

`unpack` takes an image as it is: its files as a folder of the cache, and its variables in a file next to it.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agentrl.sandbox.images import REPOSITORY, ImageError, NoEngine, built_rootfs, cache_root
from agentrl.sandbox.owner import is_alive, labels, new_label
from agentrl.types.errors import MissingExtra, needs
from agentrl.types.stdlib import piped

_CALL_S = 600
_KEY = "sandbox.spec.image"
_log = logging.getLogger(__name__)


def rootfs_named(name: str) -> Path:
    """Returns the root file system of an image: one that was unpacked, a build of ours, or one of the engine's.

    Raises:
        ImageError: it is not on this machine; names the command that makes it.
    """
    if (path := _place_of(name)).is_dir():
        return path
    if name.startswith(REPOSITORY):
        return built_rootfs(name)
    try:
        return unpack(name, say=_log.info)
    except (NoEngine, MissingExtra) as problem:
        remedy = f"agentrl sandbox unpack {name}  (takes it from the container engine), or use the docker backend"
        said = f"the image {name!r} is not unpacked for the namespace backend, and {problem.message}"
        raise ImageError(said, place=_KEY, remedy=remedy) from None
    except ImageError as problem:
        raise ImageError(problem.message, place=_KEY, remedy=problem.remedy) from None


def image_env(root: str | None) -> dict[str, str]:
    """Returns the variables of an unpacked image; of another root file system none."""
    about = Path(f"{root}.json")
    return dict(json.loads(about.read_text())["env"]) if root is not None and about.is_file() else {}


def unpack(name: str, *, say: Callable[[str], None] = print) -> Path:
    """Unpacks an image of the container engine (of `DOCKER_HOST`). An unchanged one is not unpacked again.

    Returns:
        The root file system.

    Raises:
        NoEngine: no engine answers.
        ImageError: the engine does not have it, or it cannot be unpacked.
        MissingExtra: the `docker` package is not installed.
    """
    with needs("docker"):
        import docker
    try:
        api = docker.from_env(timeout=_CALL_S).api
        api.ping()
    except docker.errors.DockerException as error:
        raise NoEngine(f"no container engine answers: {error}", remedy="start one, or set DOCKER_HOST") from None
    try:
        about = api.inspect_image(name)
    except docker.errors.ImageNotFound:
        raise ImageError(f"the engine has no image {name!r}", remedy=f"docker pull {name}, or build it") from None
    place = _place_of(name)
    beside = Path(f"{place}.json")
    if place.is_dir() and beside.is_file() and json.loads(beside.read_text())["id"] == about["Id"]:
        say(f"{name}: unpacked already, {place}")
        return place
    owner = new_label()
    partial = place.with_name(f".{place.name}~{owner}")
    about_partial, stale = Path(f"{partial}.json"), Path(f"{partial}.stale")
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    _remove_left_over(place)
    try:
        partial.mkdir()
        _export(api, about["Id"], partial, labels(owner, "unpack"))
        _take_rights(partial)
        partial.chmod(0o755)
        for file, line in _USER.items():
            _add(partial, file, line)
        variables = dict(each.partition("=")[::2] for each in about["Config"].get("Env") or ())
        held = json.dumps({"id": about["Id"], "env": variables, "workdir": about["Config"].get("WorkingDir") or ""})
        about_partial.write_text(held)
        if place.exists():
            place.rename(stale)
            shutil.rmtree(stale)
        about_partial.replace(beside)
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        about_partial.unlink(missing_ok=True)
    say(f"{name}: {place}")
    return place


_USER = {"etc/passwd": "agent:x:1000:1000:agent:/work:/bin/bash", "etc/group": "agent:x:1000:"}
"""The user of the sandboxes, where an image has no user with its number."""


def _add(root: Path, file: str, line: str) -> None:
    path = root / file
    if path.is_symlink() or path.parent.is_symlink() or not path.parent.is_dir():  # a link may lead to this machine's
        return
    lines = path.read_text(errors="surrogateescape").splitlines() if path.is_file() else []
    if not any(each.split(":")[2:3] == ["1000"] for each in lines):
        path.write_text("\n".join([*lines, line]) + "\n", errors="surrogateescape")


def _remove_left_over(place: Path) -> None:
    """Removes what killed processes have unpacked of an image."""
    for path in place.parent.glob(f".{glob.escape(place.name)}~*"):
        if not is_alive(path.name.rpartition("~")[2].partition(".")[0]):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _export(api: Any, id: str, target: Path, marks: dict[str, str]) -> None:
    """Writes the files of an image to a folder. A container is made for it, which never runs."""
    made = api.create_container(id, command=["none"], entrypoint=[], labels=marks)
    try:
        tar = ["tar", "-C", str(target), "--numeric-owner", "--delay-directory-restore", "--exclude=dev/*", "-xpf", "-"]
        with subprocess.Popen(tar, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            sink = piped(process.stdin)
            try:
                for part in api.export(made["Id"]):
                    sink.write(part)
                sink.close()
            except BrokenPipeError:
                pass  # tar says why
            said = piped(process.stderr).read().decode("utf-8", "replace")
        if process.returncode != 0:
            raise ImageError(f"its files cannot be unpacked: {said[-500:].strip()}", place=str(target))
    finally:
        api.remove_container(made["Id"], force=True, v=True)


def _take_rights(root: Path) -> None:
    """Removes the bits with which programs run as their owner: users of this machine can reach them, too."""
    for folder, _, files in os.walk(root):
        for name in files:
            about = os.lstat(path := f"{folder}/{name}")
            if stat.S_ISREG(about.st_mode) and about.st_mode & (stat.S_ISUID | stat.S_ISGID):
                os.chmod(path, stat.S_IMODE(about.st_mode) & 0o1777)


def _place_of(name: str) -> Path:
    tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    return cache_root().parent / "unpacked" / quote(tagged, safe="")
