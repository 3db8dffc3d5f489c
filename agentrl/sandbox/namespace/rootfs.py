"""File system of a namespace sandbox, and the bubblewrap command that creates it."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.sandbox.engine_images import image_env
from agentrl.sandbox.linux.seccomp import toolbox_filter
from agentrl.sandbox.namespace.own_copy import HELD, can_layer, held_in, layer, layered, owned_copy
from agentrl.sandbox.owner import is_alive, new_label
from agentrl.sandbox.preflight import no_room
from agentrl.sandbox.toolbox.client import TOOLS, WIRE
from agentrl.sandbox.toolbox.compiling import COMPILED
from agentrl.sandbox.toolbox.egress import proxy_environment
from agentrl.types.paths import data_path
from agentrl.types.sandbox import SandboxImageUnusable, SandboxSpec, SandboxUnavailable

_NOBODY = "65534"
_UID = "1000"
_MIB = 1 << 20
_LONGEST_SOCKET = 107  # bytes of the path of a unix socket
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_OPEN = ("home", "mnt", "opt", "srv", "var")  # of an image: folders of `writable` may lie next to its entries
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "services", "protocols")
_ETC_MADE = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{_UID}:{_UID}:agent:/work:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{_UID}:\n",
    "hosts": "127.0.0.1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_PROC_ALL = ("keys", "key-users")  # hidden from every user
_PROC_ROOT = (  # hidden where the host's user is root
    *_PROC_ALL, "acpi", "bus", "driver", "fs", "irq", "kallsyms", "kcore", "kmsg", "kpagecgroup", "kpagecount",
    "kpageflags", "latency_stats", "modules", "mtrr", "sched_debug", "scsi", "slabinfo", "sysrq-trigger",
    "timer_list", "timer_stats", "vmallocinfo",
)  # fmt: skip
_PROGRAMS = (
    ("toolbox", "toolbox"),
    ("toolbox", "jobs"),
    ("toolbox", "processes"),
    ("toolbox", "kernel"),
    ("toolbox", "carry"),
    ("egress", "relay"),
    ("snapshot", "archive"),
)
# The sandbox's own Python compiles, once. Sources (stdin) and code (stdout) are prefixed by their length.
_COMPILE = """
import sys
if sys.version_info < (3, 9):
    sys.exit("the Python in the sandbox is %d.%d; the toolbox needs 3.9" % sys.version_info[:2])
import _ctypes  # so does the toolbox
{compiled}
for name in sys.argv[1:]:
    source = sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), "big"))
    code = compiled(source, name)
    sys.stdout.buffer.write(len(code).to_bytes(8, "big") + code)
""".replace("{compiled}", COMPILED)
_INSTALL = "apt-get install -y bubblewrap  (as root; dnf, apk and pacman have it under the same name)"
_ALLOW = "sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0  (as root)"
_REMEDIES = (  # by bubblewrap's message
    ("namespace", _ALLOW),
    ("uid map", _ALLOW),
    ("Permission denied", f"sandboxes run as another user (id {_NOBODY}): let others read and enter the folder"),
)


@dataclass(frozen=True)
class RootFS:
    """Common part of the bubblewrap commands for one root file system.

    Attributes:
        prefix: everything up to the mounts.
        mounts: the read-only ones.
        python: path of the interpreter inside.
        sizes: whether this bubblewrap can limit a tmpfs.
        env: variables of the image.
    """

    prefix: tuple[str, ...]
    mounts: tuple[str, ...]
    python: str
    sizes: bool
    env: dict[str, str] = field(default_factory=dict)

    def start(
        self,
        spec: SandboxSpec,
        disk_mb: int,
        about_fd: int,
        socket_fd: int,
        stderr_fd: int,
        limits: list[str],
        egress_folder: Path | None,
        held: OwnCopies,
    ) -> subprocess.Popen[bytes]:
        """Starts a sandbox.

        Args:
            about_fd: bubblewrap writes the pid of the sandbox's init there.
            socket_fd: the toolbox's end of the wire.
            limits: of the toolbox, see there.
            egress_folder: a folder to show at `WIRE`.
            held: own folders that begin with files of the image.

        Raises:
            OSError: the host is out of processes, descriptors or memory.
        """
        size = ["--size", str(disk_mb * _MIB)] if self.sizes else []
        layers = {} if held.own is None else {folder: layer(held.own, n) for n, folder in enumerate(held.sources, 1)}
        writable = [
            word
            for folder, mode in (("/tmp", "1777"), ("/dev/shm", "1777"), *((own, "0755") for own in spec.own_folders))
            for word in (
                ("--bind", layers[folder], folder) if folder in layers else ("--perms", mode, *size, "--tmpfs", folder)
            )
        ]
        copied = [] if held.own is not None else [*held.sources.values()]
        writable += [word for n, source in enumerate(copied) for word in ("--ro-bind", str(source), f"{HELD}/{n}")]
        wire = ["--ro-bind", str(egress_folder), WIRE] if egress_folder is not None else []
        program = [self.python, "-I", "-S", "-B", "-X", "utf8", f"{TOOLS}/toolbox.pyc", str(socket_fd), spec.workdir]
        head = [*self.prefix, "--info-fd", str(about_fd)]
        command = [*head, *self.mounts, *wire, *writable, *_SEAL, *program, *limits]
        if held.own is not None and held.sources:
            command = layered(held.own, disk_mb * _MIB, [*held.sources.values()], command)
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr_fd, cwd="/",
            env=_environment(spec, self.env), pass_fds=(socket_fd, about_fd),
        )  # fmt: skip

    def probe(self, sources: dict[str, bytes]) -> subprocess.CompletedProcess[bytes]:
        """Compiles sources (by file name) with the sandbox's Python, which proves that the sandboxes can be made."""
        program = [self.python, "-I", "-S", "-B", "-c", _COMPILE, *sources]
        framed = b"".join(len(source).to_bytes(8, "big") + source for source in sources.values())
        argv = [*self.prefix, *self.mounts, *_SEAL, *program]
        return subprocess.run(argv, input=framed, capture_output=True, cwd="/", env={}, timeout=60, check=False)


@dataclass(frozen=True)
class OwnCopies:
    """Own folders of a sandbox that begin with files of the image.

    Attributes:
        sources: where their files lie on the host, by folder.
        own: where overlays are mounted; None: the sandbox copies the files itself.
    """

    sources: dict[str, Path]
    own: Path | None


def _environment(spec: SandboxSpec, of_image: dict[str, str]) -> dict[str, str]:
    path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    small = {"HOME": spec.workdir, "USER": "agent", "LANG": "C.UTF-8", "TERM": "dumb"}
    proxy = proxy_environment() if spec.network_kind == "allow" else {}
    return path | of_image | small | proxy | spec.env


_SEAL = ("--remount-ro", "/dev", "--remount-ro", "/", "--")
_NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
    "--uid", _UID, "--gid", _UID, "--hostname", "sandbox", "--cap-drop", "ALL",
    "--die-with-parent", "--new-session", "--as-pid-1",
)  # fmt: skip


class Host:
    """This machine's bubblewrap, and the folder of the sandboxes' tools.

    Attributes:
        label: of the owner, part of the names of folders and control groups.
        sizes: whether bubblewrap can limit the size of a tmpfs.
        drops: whether sandboxes run as another user than agentrl, which takes root.
    """

    def __init__(self, bwrap: str, python: str | None) -> None:
        self.label = new_label()
        self.sizes = False
        self.drops = False
        self._bwrap, self._python = bwrap, python
        self._folder: Path | None = None
        self._remove: Callable[[], object] = lambda: None
        self._prefix: tuple[str, ...] = ()
        self._known: dict[str | None, RootFS] = {}
        self._copies: dict[str, Path] = {}
        self._layers = False
        self._copying = threading.Lock()

    def open(self) -> None:
        """Probes bubblewrap and creates the folder.

        Raises:
            SandboxUnavailable: bubblewrap is missing, or may not make namespaces.
        """
        if self._folder is not None:
            return
        program = shutil.which(self._bwrap)
        if program is None:
            raise SandboxUnavailable("the namespace backend needs bubblewrap, which is not installed", remedy=_INSTALL)
        options = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=20, check=False).stdout
        self.sizes = "--size " in options
        nested = ("--disable-userns",) if "--disable-userns" in options else ()
        try:
            self._make_folder()
        except OSError as error:
            self.close()
            raise no_room("namespace", error.strerror or str(error)) from None
        setpriv = shutil.which("setpriv")
        prefixes = [(program, *_NAMESPACES, *nested)]
        if os.geteuid() == 0 and setpriv is not None:
            drop = (setpriv, "--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups", "--")
            prefixes.insert(0, (*drop, *prefixes[0]))
        problems: list[SandboxUnavailable] = []
        for prefix in prefixes:
            self._prefix, self.drops = prefix, prefix[0] == setpriv
            try:
                self.rootfs(None)
            except SandboxUnavailable as problem:
                problems.append(problem)
            else:
                self._layers = can_layer(self._own)
                return
        self.close()
        raise problems[-1]

    def rootfs(self, path: str | None) -> RootFS:
        """Returns the root file system of that path; None: the host's `/usr`.

        Raises:
            SandboxUnavailable: sandboxes cannot be made from it.
        """
        if path not in self._known:
            python, mounts = self._host_system() if path is None else self._own_system(path)
            tools = self.folder / f"tools{len(self._known)}"
            tools.mkdir(exist_ok=True)
            tools.chmod(0o755)
            mounts += ["--ro-bind", str(tools), TOOLS, "--proc", "/proc", "--dev", "/dev", *self._masks()]
            rootfs = RootFS(self._prefix, tuple(mounts), python, self.sizes, image_env(path))
            sources = {f"{name}.py": data_path("tools", room, f"{name}.py").read_bytes() for room, name in _PROGRAMS}
            done = rootfs.probe(sources)
            if done.returncode != 0:
                said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
                remedy = next((fix for sign, fix in _REMEDIES if sign in said), None)
                raise SandboxUnavailable(f"bubblewrap cannot make a sandbox: {said}", place=path, remedy=remedy)
            codes = io.BytesIO(done.stdout)
            try:
                for name in sources:
                    (tools / f"{name}c").write_bytes(codes.read(int.from_bytes(codes.read(8), "big")))
                (tools / "filter.bpf").write_bytes(toolbox_filter())
            except OSError as error:
                raise no_room("namespace", error.strerror) from None
            self._known[path] = rootfs
        return self._known[path]

    def own_copies(self, root: str | None, spec: SandboxSpec) -> OwnCopies:
        """Returns the own folders of a spec that begin with files of the root file system.

        The first call for a folder copies it, for all sandboxes.

        Raises:
            SandboxUnavailable: it cannot be copied.
        """
        sources = {folder: f"{root}{folder}" for folder in held_in(root, spec)}
        if not self._layers:
            return OwnCopies({folder: Path(source) for folder, source in sources.items()}, None)
        with self._copying:
            for source in sources.values():
                if source not in self._copies:
                    target = self.folder / f"held{len(self._copies)}"
                    try:
                        owned_copy(source, target, int(_NOBODY) if self.drops else os.geteuid())
                    except OSError as error:
                        raise no_room("namespace", f"a copy of {source}: {error}") from None
                    self._copies[source] = target
            return OwnCopies({folder: self._copies[source] for folder, source in sources.items()}, self._own)

    @property
    def _own(self) -> Path:
        return self.folder / "own"

    @property
    def folder(self) -> Path:
        """The folder; exists from `open` to `close`."""
        assert self._folder is not None
        return self._folder

    def make_egress_folder(self) -> Path:
        """Creates a folder for the egress proxy's socket, which only the sandbox's user may enter.

        Raises:
            OSError: it cannot be made.
        """
        folder = Path(tempfile.mkdtemp(prefix="out-", dir=self.folder))
        if self.drops:
            os.chown(folder, int(_NOBODY), int(_NOBODY))
        return folder

    def fits_egress_socket(self, socket: str) -> bool:
        """Returns True if the path of a socket of that name in the egress folder is short enough to listen."""
        return len(os.fsencode(f"{self.folder}/out-xxxxxxxx/{socket}")) <= _LONGEST_SOCKET

    def close(self) -> None:
        """Removes the folder."""
        self._remove()
        self._folder, self._known, self._copies = None, {}, {}

    def _host_system(self) -> tuple[str, list[str]]:
        python = self._python or next((path for path in _PYTHONS if os.path.exists(path)), None)
        python = python or os.path.realpath(sys.executable)
        mounts = ["--ro-bind", "/usr", "/usr"]
        for name in _SYSTEM:
            if os.path.islink(f"/{name}"):
                mounts += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif os.path.isdir(f"/{name}"):
                mounts += ["--ro-bind", f"/{name}", f"/{name}"]
        real = os.path.realpath(python)
        if not real.startswith("/usr/"):
            home = os.path.dirname(os.path.dirname(real))
            mounts += ["--ro-bind", home, home]
            python = real
        return python, [*mounts, "--ro-bind", f"{self._folder}/etc", "/etc"]

    def _own_system(self, path: str) -> tuple[str, list[str]]:
        if not os.path.isdir(path):
            remedy = "give the folder of an unpacked image; `agentrl sandbox build base` makes one"
            raise SandboxImageUnusable(f"rootfs {path} is no folder", place="sandbox.spec.rootfs", remedy=remedy)
        here = [self._python] if self._python else _PYTHONS
        python = next((python for python in here if os.path.lexists(f"{path}{python}")), None)
        if python is None:
            raise SandboxImageUnusable(f"rootfs has no {' or '.join(here)}", place=path, remedy="install python3 in it")
        mounts = []
        for name in sorted(set(os.listdir(path)) - {"dev", "proc", "run", "sys", "tmp"}):
            open_folder = name in _OPEN and os.path.isdir(f"{path}/{name}") and not os.path.islink(f"{path}/{name}")
            mounts += _spread(path, name) if open_folder else _shown(path, name, os.path.isdir)
        return python, mounts

    def _masks(self) -> list[str]:
        """Hides information of `/proc` about the host.

        Its secrets are root's, so that another user cannot read them; unless sandboxes run as root. Settings are always
        read-only: some belong to the namespace, and so to its user.
        """
        exposed = os.geteuid() == 0 and not self.drops
        words = ["--ro-bind", "/proc/sys", "/proc/sys"]
        for name in _PROC_ROOT if exposed else _PROC_ALL:
            if os.path.exists(f"/proc/{name}"):
                cover = f"{self._folder}/empty" if os.path.isdir(f"/proc/{name}") else "/dev/null"
                words += ["--ro-bind", cover, f"/proc/{name}"]
        return words

    def _make_folder(self) -> None:
        reap_folders()
        self._folder = Path(tempfile.gettempdir()) / f"agentrl-{self.label}"
        self._folder.mkdir()
        lock = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._remove = weakref.finalize(self, _remove, self._folder, lock)  # also at exit, without a call of close
        etc = self._folder / "etc"
        etc.mkdir()
        (self._folder / "empty").mkdir()
        (self._folder / "own").mkdir()
        for name, text in _ETC_MADE.items():
            (etc / name).write_text(text)
        for name in _ETC:
            source = Path("/etc", name)
            if source.is_dir():
                shutil.copytree(source, etc / name, symlinks=True)
            elif source.exists():
                shutil.copyfile(source, etc / name)
        for path in (self._folder, *self._folder.rglob("*")):  # despite any umask: the sandbox's user must read it
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)


def _spread(root: str, folder: str) -> list[str]:
    """Shows a folder of an image entry by entry, so that other folders may be mounted in it."""
    entries = [_shown(root, f"{folder}/{name}", os.path.exists) for name in sorted(os.listdir(f"{root}/{folder}"))]
    return ["--perms", "0755", "--dir", f"/{folder}", *(word for entry in entries for word in entry)]


def _shown(root: str, path: str, wanted: Callable[[str], bool]) -> list[str]:
    if os.path.islink(f"{root}/{path}"):
        return ["--symlink", os.readlink(f"{root}/{path}"), f"/{path}"]
    return ["--ro-bind", f"{root}/{path}", f"/{path}"] if wanted(f"{root}/{path}") else []


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def reap_folders(*, dry: bool = False) -> list[str]:
    """Removes folders of killed owners (their lock is free), and processes that were about to start from them.

    A sandbox dies with its owner, except bubblewrap's child in the moment before it gets its identity.

    Returns:
        Removed objects; with `dry`, those that would be.
    """
    found = []
    for lock in Path(tempfile.gettempdir()).glob("agentrl-*-*/lock"):
        with suppress(OSError), open(lock) as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid() or is_alive(lock.parent.name.removeprefix("agentrl-")):
                continue
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if f"{lock.parent}/".encode() in (process / "cmdline").read_bytes():
                        found.append(f"process {process.name}")
                        if not dry:
                            os.kill(int(process.name), signal.SIGKILL)
            found.append(f"folder {lock.parent}")
            if not dry:
                shutil.rmtree(lock.parent, ignore_errors=True)
    return found
