"""A container engine for tests: the one that runs here, or a private one, shared by all workers of a test run.

Images come from no registry: a small one is made of this machine's own Python, bash and tools.
"""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import until, wait_for_end

IMAGE = "agentrl/base:latest"
NO_PYTHON = "agentrl-test/no-python:latest"

_USES = itertools.count()
KILL = "kill $(cat {folder}/pid); while [ -e {folder}/pid ]; do sleep 0.1; done"
"""A script that ends the engine of a folder, with its containers."""
KILLS = {
    "ended": KILL,
    "killed": (
        "kill -9 $(cat {folder}/pid) $(cat {folder}/exec/containerd/containerd.pid); "
        "rm {folder}/pid {folder}/exec/containerd/containerd.pid"
    ),
}
"""Scripts that end it in two ways. Containers outlive a kill, until the engine is there again. It does not start while
its files name processes that nobody has waited for."""
PROGRAMS = """
bash sh python3 cat ls cp mv rm mkdir rmdir ln chmod touch head tail wc sort uniq tr cut tee sleep true false echo env
printf date id whoami stat dd df du find grep sed awk mawk tar gzip nohup setsid timeout seq yes kill ps mount umount
readlink realpath dirname basename test [ sync truncate mktemp mknod mkfifo nproc hostname getent su sha256sum od
""".split()  # noqa: SIM905


def engine_answers(host: str) -> bool:
    """Whether an engine can be used at an address."""
    if shutil.which("docker") is None or not host.startswith("unix://"):
        return False
    asked = ["docker", "-H", host, "version", "--format", "{{.Server.Version}}"]
    with suppress(subprocess.TimeoutExpired):
        return subprocess.run(asked, capture_output=True, timeout=20, check=False).returncode == 0
    return False


def usable() -> bool:
    """Whether an engine answers already."""
    return engine_answers(_given())


def why_not() -> str:
    """Why no private engine can be started here; empty if one can."""
    if shutil.which("dockerd") is None or shutil.which("docker") is None:
        return "no container engine: apt-get install -y docker.io"
    return "" if os.geteuid() == 0 else "no container engine answers, and only root can start one"


@contextmanager
def engine(shared: Path) -> Iterator[str]:
    """The address of an engine that has `IMAGE`.

    Args:
        shared: a folder that all users of the engine name; the last that leaves stops it.
    """
    given = _given()
    if engine_answers(given):
        with _locked(shared):
            import_images(given)
        yield given
        return
    folder = shared / "dockerd"
    host = f"unix://{folder}/sock"
    user = folder / f"user-{os.getpid()}-{next(_USES)}"
    with _locked(shared):
        folder.mkdir(exist_ok=True)
        if not engine_answers(host):
            start(folder, host)
        import_images(host)
        user.touch()
    try:
        yield host
    finally:
        with _locked(shared):
            user.unlink()
            if not any(folder.glob("user-*")):
                stop(folder)


def _given() -> str:
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def start(folder: Path, host: str, *, own_network: bool = False) -> None:
    """Starts a private engine. `folder/start.sh` does the same once more, without waiting for it.

    Args:
        own_network: starts it in a network namespace, where it may make bridges and rules; nothing leads out of there.
            Without one it changes nothing of this machine's network, and has none but `none`.
    """
    argv = [
        "dockerd", "-H", host, "--data-root", str(folder / "root"), "--exec-root", str(folder / "exec"),
        "--pidfile", str(folder / "pid"), "--bridge=none",
    ]  # fmt: skip
    if own_network:
        argv = ["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {shlex.join(argv)}"]
    else:
        argv += ["--iptables=false", "--ip-forward=false"]
    (folder / "start.sh").write_text(f"exec {shlex.join(argv)} >>{folder}/log 2>&1 </dev/null\n")
    engine = subprocess.Popen(["bash", str(folder / "start.sh")], start_new_session=True)
    until(lambda: engine_answers(host) or engine.poll() is not None)
    if engine.returncode is not None:
        raise RuntimeError(f"dockerd did not come up:\n{(folder / 'log').read_text()[-2000:]}")


def stop(folder: Path) -> None:
    """Ends a private engine, and removes its folder."""
    with suppress(OSError, ValueError):
        pid = int((folder / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
        wait_for_end(pid)
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for path in sorted((path for path in mounted if path.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", path], capture_output=True, check=False)  # a dockerd that was killed leaves it
    shutil.rmtree(folder, ignore_errors=True)


def import_images(host: str) -> None:
    """Makes the images of the tests, unless they are there."""
    for name, programs in ((IMAGE, PROGRAMS), (NO_PYTHON, ["bash", "sh"])):
        asked = ["docker", "-H", host, "images", "-q", name]
        if not subprocess.run(asked, capture_output=True, check=True).stdout:
            _import(host, name, programs)


def _import(host: str, name: str, programs: list[str]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
        for link in ("bin", "sbin", "lib", "lib64"):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{link}"
            tar.addfile(entry)
        for path in sorted(_files(programs)):
            tar.add(path, arcname=f"usr/{path.removeprefix('/usr').lstrip('/')}", recursive=False)
        if "python3" in programs:
            library = Path("/usr/lib", Path("/usr/bin/python3").resolve().name)
            tar.add(library, filter=lambda each: None if "__pycache__" in each.name or "/test/" in each.name else each)
        for folder, mode in (("tmp", 0o1777), ("etc", 0o755), ("run", 0o755), ("root", 0o700)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
    imported = ["docker", "-H", host, "import", "-", name]
    subprocess.run(imported, input=packed.getvalue(), stdout=subprocess.DEVNULL, check=True)


def _files(programs: list[str]) -> set[str]:
    """The programs (of the system, not of a virtual environment), and the libraries that they load."""
    where = "/usr/bin:/usr/sbin:/bin:/sbin"
    found = {path for name in programs if (path := shutil.which(name, path=where))}
    modules = [str(path) for path in Path("/usr/lib").glob("python3*/lib-dynload/*.so") if "python3" in programs]
    for program in [*found, *modules]:
        ldd = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        found.update(word for word in ldd.split() if word.startswith("/"))
    return found


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / "dockerd.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
