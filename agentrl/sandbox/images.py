"""Sandbox images: their definitions, and builds without a registry.

A definition is a folder under `/sandboxes`: a Dockerfile and, where needed, `packages.txt` (Debian),
`requirements.txt` (PyPI), and `build.sh`, which runs last. `build` makes a root file system from it with debootstrap,
for the `namespace` backend, and hands the same files to a container engine, for `docker`. Both builds run the same
scripts, so they are equal.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agentrl.types.errors import nearest, needs
from agentrl.types.paths import data_path
from agentrl.types.reporter import report_work
from agentrl.types.sandbox import SandboxImageUnusable
from agentrl.types.stdlib import piped

MIRROR = "http://deb.debian.org/debian"
REPOSITORY = "agentrl/"
"""Prefix of our images in `SandboxSpec.image` and in a container engine: `agentrl/swe`."""

_SCRIPT, _OWN_SCRIPT = "install.sh", "build.sh"
# Every step runs in separate mount and process namespaces, and dies with us: a killed build leaves no mounts and
# processes.
_ALONE = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
)  # fmt: skip
_CHROOT = """
mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/tmp" && mount --bind "$2" "$1/mnt" &&
exec chroot "$1" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 sh "/mnt/$3"
"""


_DEBOOTSTRAP_LINES = 457
"""Lines that debootstrap prints for a minimal bookworm."""


class ImageError(SandboxImageUnusable):
    """An image is unknown, not built, or cannot be built here."""


class NoEngine(ImageError):
    """No container engine answers."""


@dataclass(frozen=True)
class Image:
    """Definition of an image.

    Attributes:
        parent: the image of ours that it extends; None: Debian itself.
        suite: Debian release of the lowest layer.
        digest: of all inputs, parents included; a build is reused while it is unchanged.
    """

    name: str
    folder: Path
    parent: Image | None
    suite: str
    digest: str


def image_names() -> list[str]:
    """Returns the images that have a definition."""
    return sorted(path.parent.name for path in data_path("sandboxes").glob("*/Dockerfile"))


def image_named(name: str) -> Image:
    """Returns the definition of that name; prefix `agentrl/` and suffix `:latest` are optional.

    Raises:
        ImageError: it does not exist; names the nearest.
    """
    short = name.removeprefix(REPOSITORY).removesuffix(":latest")
    names = image_names()
    if short not in names:
        raise ImageError(f"there is no sandbox image {name!r}", remedy=nearest(short, names))
    folder = data_path("sandboxes", short)
    start = re.search(r"^FROM (\S+)", (folder / "Dockerfile").read_text(), re.MULTILINE)
    if start is None:
        raise ImageError("has no FROM", place=f"{folder}/Dockerfile", remedy="FROM debian:bookworm-slim")
    parent = image_named(start[1]) if start[1].startswith(REPOSITORY) else None
    suite = parent.suite if parent else start[1].removeprefix("debian:").removesuffix("-slim")
    inputs = [folder.parent / _SCRIPT, *(folder / name for name in ("packages.txt", "requirements.txt"))]
    inputs += sorted(
        path for path in folder.iterdir() if path.is_file() and path.name != "Dockerfile" and path not in inputs
    )
    whole = hashlib.sha256(f"{parent.digest if parent else suite}\n".encode())
    for path in inputs:
        if path.exists():
            whole.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return Image(short, folder, parent, suite, whole.hexdigest()[:12])


def cache_root() -> Path:
    """Returns the folder of built root file systems.

    `AGENTRL_CACHE`, else for root `/var/cache/agentrl` (sandboxes run as another user, without access to `/root`),
    else `~/.cache/agentrl`.
    """
    if given := os.environ.get("AGENTRL_CACHE"):
        return Path(given).absolute() / "rootfs"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path("/var/cache") if os.geteuid() == 0 else home) / "agentrl" / "rootfs"


def place_of(image: Image) -> Path:
    """Returns the path of the root file system of today's definition, built or not."""
    return cache_root() / f"{image.name}-{image.digest}"


def is_built(image: Image) -> bool:
    """Returns True if it was built from today's definition."""
    return place_of(image).is_dir()


def built_rootfs(name: str) -> Path:
    """Returns the root file system of a built image.

    Raises:
        ImageError: it is unknown, or was not built from today's definition.
    """
    image = image_named(name)
    path = place_of(image)
    if not is_built(image):
        older = any(path.parent.glob(f"{image.name}-*"))
        problem = "was built from an older definition" if older else "is not built"
        raise ImageError(f"the sandbox image {image.name!r} {problem}", remedy=f"agentrl sandbox build {image.name}")
    return path


def build(name: str, *, mirror: str = MIRROR, say: Callable[[str], None] = print) -> Path:
    """Builds an image, after those that it extends; existing builds are reused.

    The result appears under its name in one step, when it is complete.

    Args:
        mirror: of Debian packages.
        say: receives progress, a line at a time.

    Returns:
        The root file system.

    Raises:
        ImageError: it is unknown, a program or a right is missing, or a step failed (with its last words).
    """
    return _build(image_named(name), mirror, say)


def _build(image: Image, mirror: str, say: Callable[[str], None]) -> Path:
    place = place_of(image)
    if is_built(image):
        say(f"{image.name}: built already, {place}")
        return place
    _check_host()
    parent = _build(image.parent, mirror, say) if image.parent else None
    with _locked(place.parent / f"{image.name}.lock") as lock:
        if is_built(image):  # built by another process in the meantime
            return place
        for stale in place.parent.glob(f".{image.name}-*"):  # of a killed build: we hold its lock
            _remove(stale)
        partial = place.with_name(f".{place.name}")
        recipe = place.with_name(f".{place.name}-recipe")
        try:
            if parent is not None:
                say(f"{image.name}: starts from {parent}")
                copy = ["cp", "-a", "--verbose", "--reflink=auto", str(parent), str(partial)]
                _run(copy, f"{image.name}: copy", lock, lines=_files_in(parent))
            else:
                say(f"{image.name}: debootstrap {image.suite} from {mirror}")
                _run(
                    ["debootstrap", "--variant=minbase", image.suite, str(partial), mirror],
                    f"{image.name}: debootstrap",
                    lock,
                    guess=_DEBOOTSTRAP_LINES,
                )
            _install(image, partial, recipe, say, lock)
            partial.chmod(0o755)
            partial.rename(place)
        finally:
            _remove(partial)
            _remove(recipe)
    say(f"{image.name}: {place}")
    return place


def _install(image: Image, root: Path, recipe: Path, say: Callable[[str], None], lock: int) -> None:
    """Runs the scripts of a copy of the definition inside: the common one with the host's name server, then its own."""
    shutil.copytree(image.folder, recipe)
    shutil.copy(image.folder.parent / _SCRIPT, recipe)
    if (recipe / "requirements.txt").exists():
        say(f"{image.name}: wheels from PyPI")
        version = next((root / "usr/bin").glob("python3.[0-9]*")).name.removeprefix("python")
        pip = [sys.executable, "-m", "pip", "download", "--only-binary", ":all:", "--python-version", version]
        target = ["-d", str(recipe / "wheels"), "-r", str(recipe / "requirements.txt")]
        _run([*pip, *target], f"{image.name}: pip download", lock)
    if (recipe / "packages.txt").exists():
        _install_packages(image, root, recipe, say, lock)
    if (recipe / _OWN_SCRIPT).exists():
        say(f"{image.name}: {_OWN_SCRIPT}")
        _run(["sh", "-c", _CHROOT, "sh", str(root), str(recipe), _OWN_SCRIPT], f"{image.name}: {_OWN_SCRIPT}", lock)


def _install_packages(image: Image, root: Path, recipe: Path, say: Callable[[str], None], lock: int) -> None:
    say(f"{image.name}: packages")
    resolver = root / "etc/resolv.conf"
    resolver.unlink(missing_ok=True)
    shutil.copyfile("/etc/resolv.conf", resolver)
    _run(["sh", "-c", _CHROOT, "sh", str(root), str(recipe), _SCRIPT], f"{image.name}: packages", lock)
    resolver.write_text("")


def archive(name: str, target: Path) -> None:
    """Writes a built root file system to a tar archive, compressed by its suffix (.tar, .tar.gz, .tar.zst).

    Raises:
        ImageError: it is not built, or tar failed.
    """
    root = built_rootfs(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".partial-{target.name}")  # same suffix as the target: tar reads it
    try:
        command = ["tar", "-C", str(root), "--numeric-owner", "--auto-compress", "--verbose", "-cf", str(partial), "."]
        _run(command, f"{name}: archive", lines=_files_in(root))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def import_image(name: str, *, say: Callable[[str], None] = print) -> str:
    """Imports a built root file system into the container engine (of `DOCKER_HOST`) as `agentrl/NAME:latest`.

    Returns:
        The id of the image.

    Raises:
        NoEngine: no engine answers.
        ImageError: it is not built, or the engine refused it.
        MissingExtra: the `docker` package is not installed.
    """
    image = image_named(name)
    root = built_rootfs(name)
    with needs("docker"):
        import docker
    try:
        api = docker.from_env(timeout=600).api
        api.ping()
    except docker.errors.DockerException as error:
        raise NoEngine(f"no container engine answers: {error}", remedy="start one, or set DOCKER_HOST") from None
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        said = api.import_image_from_stream(
            _told(piped(tar.stdout), f"{image.name}: to the container engine, MiB", _bytes_in(root)),
            repository=f"{REPOSITORY}{image.name}",
            tag="latest",
            changes=[f"LABEL agentrl.digest={image.digest}", "WORKDIR /work", 'CMD ["bash"]'],
        )
    found = re.search(r'"status":\s*"(sha256:\w+)', said)
    if found is None:
        raise ImageError(f"the engine did not take {image.name}: {said[-500:]}")
    say(f"{image.name}: in the container engine as {REPOSITORY}{image.name}:latest")
    return found[1]


def _check_host() -> None:
    missing = [program for program in ("debootstrap", "unshare", "setpriv") if shutil.which(program) is None]
    if missing:
        raise ImageError(f"{' and '.join(missing)} missing", remedy="apt-get install -y debootstrap util-linux")
    if os.geteuid() != 0:
        argv = shlex.join(["sudo", "-E", sys.executable, "-m", "agentrl.cli", *sys.argv[1:]])
        raise ImageError("building an image needs root (debootstrap makes devices and owners)", remedy=argv)


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Locks an image for one build at a time. Gives the lock, which ends with all processes that have it open."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _run(argv: list[str], step: str, *lock: int, lines: int | None = None, guess: int = 0) -> None:
    """Runs a step of a build; how far it is, is told by the lines that it prints.

    Args:
        lock: files that the program keeps open. It may outlive a killed build for a moment, and must not write into the
            next one.
        lines: how many lines it prints; None: as many as the last time it succeeded, which the cache keeps.
        guess: how many it prints the first time; 0: unknown.
    """
    kept = cache_root() / f".lines-{step.replace(': ', '-')}"
    last, number = deque[bytes](maxlen=12), 0
    total = (_known(kept) or guess) if lines is None else lines
    report_work(step, 0, total)
    with subprocess.Popen(
        [*_ALONE, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=lock
    ) as process:
        try:
            for number, line in enumerate(piped(process.stdout), 1):
                last.append(line)
                report_work(step, number, max(total, number + 1) if total else 0)
        except BaseException:
            process.kill()
            raise
    report_work(step, max(number, 1), max(number, 1))
    if process.returncode != 0:
        tail = b"".join(last).decode("utf-8", "replace").strip()
        raise ImageError(f"failed with exit code {process.returncode}:\n{tail}", place=step)
    if lines is None:
        with suppress(OSError):
            kept.write_text(str(number))


def _known(kept: Path) -> int:
    """Returns how many lines a step printed the last time; 0: unknown."""
    try:
        return int(kept.read_text())
    except (OSError, ValueError):
        return 0


def _files_in(root: Path) -> int:
    return 1 + sum(len(folders) + len(files) for _, folders, files in os.walk(root))


def _bytes_in(root: Path) -> int:
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return sum(os.lstat(path).st_size for path in paths)


def _told(stream: IO[bytes], step: str, total: int) -> Iterator[bytes]:
    """Yields what a stream holds, and tells how far it is."""
    done = 0
    report_work(step, 0, total >> 20)
    while part := stream.read(1 << 20):
        done += len(part)
        report_work(step, done >> 20, max(total >> 20, (done >> 20) + 1))
        yield part
    end = max(done >> 20, 1)
    report_work(step, end, end)


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
