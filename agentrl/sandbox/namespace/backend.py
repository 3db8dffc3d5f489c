"""The `namespace` backend: Linux namespaces by bubblewrap. Needs no daemon, image or root; starts in milliseconds.

A sandbox sees a read-only `/usr` (or a root file system of yours), private `/work` and `/tmp` in memory, its own
processes, and no network. Its user has no capabilities, and cannot create namespaces. If agentrl runs as root,
sandboxes run as another user of the host.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from pathlib import Path

from agentrl.sandbox.engine_images import rootfs_named
from agentrl.sandbox.linux.bounds import ProcessBounds
from agentrl.sandbox.linux.cgroups import CgroupFamily, found_family, reap_groups
from agentrl.sandbox.linux.seccomp import filter_program
from agentrl.sandbox.namespace.own_copy import COPY, HELD
from agentrl.sandbox.namespace.rootfs import Host, reap_folders
from agentrl.sandbox.namespace.tree import ProcessTree
from agentrl.sandbox.preflight import refuse
from agentrl.sandbox.toolbox.archives import Archive, Archives
from agentrl.sandbox.toolbox.egress import SOCKET, Egress, open_egress
from agentrl.sandbox.toolbox.snapshot import SnapshotSandbox
from agentrl.types.sandbox import Capabilities, NetworkAllow, SandboxSpec, SandboxStartFailed, SandboxUnavailable

_COPY_S = 300.0


class NamespaceBackend:
    """Makes sandboxes from namespaces.

    Args:
        bwrap: the bubblewrap program; default: the one on PATH.
        python: inside the sandbox; default: the system's, else the one that runs agentrl.
        cgroups: whether to limit by control group where possible; without, by rlimit.
    """

    name = "namespace"

    def __init__(self, bwrap: str = "bwrap", python: str | None = None, cgroups: bool = True) -> None:
        self.egress = Egress()
        self._host = Host(bwrap, python)
        self.snapshots = Archives(self._host.label)
        self._want_cgroups = cgroups
        self._family: CgroupFamily | None = None
        self._known: Capabilities | None = None
        self._probed: set[tuple[str | None, str | None]] = set()  # images and root file systems
        self._alive: set[NamespaceSandbox] = set()
        self._opening = threading.RLock()

    @property
    def capabilities(self) -> Capabilities:
        """Limits and isolation that this machine can enforce."""
        with self._opening:
            if self._known is None:
                self._known = self._open()
            return self._known

    def _open(self) -> Capabilities:
        self._host.open()
        self._family = found_family(self._host.label) if self._want_cgroups else None
        means = self._family.means if self._family else "rlimit"
        notes = [] if self._family else ["no writable cgroup: memory is limited per process, not per sandbox"]
        if filter_program() is None:
            notes.append("no libseccomp: system calls are not filtered")
        if os.geteuid() == 0 and not self._host.drops:
            notes.append("sandboxes run as root's user id, without capabilities: another user was not possible")
        return Capabilities(
            isolation="namespace",
            cpu=means if self._family and self._family.cpu else "none",
            memory=means,
            pids=means,
            sockets=means if self._family and self._family.tcp else "none",
            disk="tmpfs" if self._host.sizes else "none",
            networks=("none", "allow"),
            images=True,
            rootfs=True,
            snapshots=True,
            endpoints=True,
            syscalls="seccomp" if filter_program() is not None else "none",
            note="; ".join(notes),
        )

    def preflight(self, spec: SandboxSpec) -> None:
        """Refuses what cannot be enforced, and probes the root file system, see `Backend.preflight`."""
        with self._opening:
            self._preflight(spec)

    def _preflight(self, spec: SandboxSpec) -> None:
        known = self.capabilities
        wants = (
            (
                spec.image is not None and spec.rootfs is not None,
                "rootfs",
                "takes image or rootfs, not both",
                "drop one",
            ),
            (
                spec.network_kind not in known.networks,
                "network",
                "gives no public network",
                "set network: none or {allow: [host, ...]} (tasks of harbor: tasks.args.network), or use docker",
            ),
            (spec.cpu is not None and known.cpu == "none", "cpu", "cannot limit processor time here", "leave cpu out"),
            (
                spec.memory_mb is not None and known.memory == "rlimit",
                "memory_mb",
                "cannot limit the memory of a whole sandbox here (no writable cgroup)",
                "leave memory_mb out (each process is then limited), or run where cgroups are writable",
            ),
            (
                spec.disk_mb is not None and known.disk == "none",
                "disk_mb",
                "cannot limit the size of folders with this bubblewrap",
                "install bubblewrap 0.8 or newer, or leave disk_mb out",
            ),
        )
        refuse(self.name, spec, wants)
        if spec.network_kind == "allow" and not self._host.fits_egress_socket(SOCKET):
            folder = self._host.folder.parent
            problem = f"the path {folder} is too long: the egress proxy's socket cannot lie in it"
            remedy = "set TMPDIR to a folder with a shorter path, as /tmp"
            raise SandboxUnavailable(problem, place=str(folder), remedy=remedy)
        self._host.rootfs(_rootfs_of(spec))
        self._probed.add((spec.image, spec.rootfs))

    async def create(self, spec: SandboxSpec, *, label: str = "") -> NamespaceSandbox:
        """A fresh sandbox."""
        if self._known is None or (spec.image, spec.rootfs) not in self._probed:
            await asyncio.to_thread(self.preflight, spec)  # a probe takes a second, to unpack an image takes minutes
        else:
            self.preflight(spec)
        return await self.launch(spec, label, None)

    async def launch(self, spec: SandboxSpec, label: str, snapshot: Archive | None) -> NamespaceSandbox:
        """Starts a sandbox with the spec's files and setup, or with the files of a snapshot, which include them."""
        sandbox = NamespaceSandbox(self, self._host, self._family, spec, label)
        self._alive.add(sandbox)
        try:
            await sandbox.start(snapshot)
            if snapshot is None:
                await sandbox.prepare()
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, OSError | SandboxStartFailed) and not self._host.folder.is_dir():
                raise SandboxStartFailed(
                    f"the backend's own files are gone: {self._host.folder}",
                    remedy="something removed them, perhaps a cleaner of temporary files: set TMPDIR to another folder",
                ) from error
            if isinstance(error, OSError):  # the host is out of processes, descriptors or memory
                raise SandboxStartFailed(f"the host could not start a sandbox: {error}") from error
            raise
        return sandbox

    async def reap(self, *, dry: bool = False) -> list[str]:
        """Removes leftovers of killed owners: groups with their processes, and folders."""
        return reap_groups(dry=dry) + reap_folders(dry=dry)

    async def close(self) -> None:
        """Closes every sandbox that it made, and drops its snapshots."""
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._alive)))
        await self.snapshots.drop_all()
        self.egress.stop()
        with self._opening:  # a probe may be under way
            if self._family is not None:
                self._family.close()
            self._family = self._known = None
            self._probed.clear()
            self._host.close()

    def forget(self, sandbox: NamespaceSandbox) -> None:
        """Forgets a sandbox that is gone."""
        self._alive.discard(sandbox)


def _rootfs_of(spec: SandboxSpec) -> str | None:
    """Returns the folder of the root file system; None: the host's."""
    return spec.rootfs if spec.image is None else str(rootfs_named(spec.image))


class NamespaceSandbox(SnapshotSandbox[Archive]):
    """Process tree in its own namespaces."""

    def __init__(
        self, backend: NamespaceBackend, host: Host, family: CgroupFamily | None, spec: SandboxSpec, label: str
    ) -> None:
        super().__init__(spec, label, backend.snapshots)
        self._backend, self._host, self._family = backend, host, family
        self._rootfs = host.rootfs(_rootfs_of(spec))
        self._tree = ProcessTree()
        self._egress_folder: Path | None = None
        self._packing = asyncio.Lock()

    async def start(self, snapshot: Archive | None) -> None:
        """Starts the processes, opens the egress and unpacks the files, see `ProcessTree.start`."""
        spec, python = self.spec, self._rootfs.python
        if isinstance(spec.network, NetworkAllow):
            self._egress_folder = self._host.make_egress_folder()
        held = await asyncio.to_thread(self._host.own_copies, _rootfs_of(spec), spec)
        await self._tree.start(self._rootfs, spec, self._family, self.wire, self._egress_folder, held)
        if isinstance(spec.network, NetworkAllow):
            await open_egress(self, self._backend.egress, self._socket, spec.network.allow, python)
        if snapshot is not None:
            await self._backend.snapshots.put_back(self, python, snapshot)
        elif held.own is None:
            for number, folder in enumerate(held.sources):
                copied = await self.exec(
                    [python, "-I", "-S", "-c", COPY, f"{HELD}/{number}", folder], timeout_s=_COPY_S
                )
                if not copied.ok:
                    why = f"{copied.outcome}: {copied.text[-300:].strip()}"
                    raise SandboxStartFailed(f"the files of the image at {folder} cannot be copied: {why}")
        self.limit_life()

    @property
    def _socket(self) -> str:
        return f"{self._egress_folder}/{SOCKET}"

    def oom_kills(self) -> int | None:
        """Returns the count of the control group."""
        return self._tree.group.oom_kills() if self._tree.group else None

    def memory_mb(self) -> float | None:
        """Returns the count of the control group."""
        return self._tree.group.memory_mb() if self._tree.group else None

    def cpu_s(self) -> float | None:
        """Returns the count of the control group."""
        return self._tree.group.cpu_s() if self._tree.group else None

    async def keep(self) -> Archive:
        """Packs its files; one packer at a time, as each stops all other programs."""
        most = ProcessBounds.of(self.spec).archive_mb
        async with self._packing:
            return await self._backend.snapshots.keep(self, self._rootfs.python, self._host.folder, most)

    async def launch(self, label: str, snapshot: Archive) -> NamespaceSandbox:
        """Starts another process tree with the files of an archive."""
        return await self._backend.launch(self.spec, label, snapshot)

    async def end(self) -> None:
        """Ends the processes and closes the egress; both can be started again."""
        await self._tree.remove()
        self._tree = ProcessTree()
        if self._egress_folder is not None:
            self._backend.egress.close(self._socket)
            shutil.rmtree(self._egress_folder, ignore_errors=True)

    async def destroy(self) -> None:
        """Removes everything."""
        await super().destroy()
        self._backend.forget(self)
