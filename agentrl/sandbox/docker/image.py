"""Prepares arbitrary images for sandboxes: adds the toolbox, and a user to run as.

A short-lived container of the image compiles the toolbox with the image's own Python (byte code of another version is
useless) and so shows, before the first episode, that the image fulfils the requirements of sandboxes.
"""

from __future__ import annotations

import io
import shlex
import shutil
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from agentrl.sandbox.docker.engine import ContainerEngine
from agentrl.sandbox.linux.seccomp import toolbox_filter
from agentrl.sandbox.preflight import no_room
from agentrl.sandbox.toolbox.client import TOOLS
from agentrl.sandbox.toolbox.compiling import COMPILED
from agentrl.types.paths import data_path
from agentrl.types.sandbox import SandboxImageUnusable

UID = 1000
PROBE_S = 120.0
_NO_ROOM = 75  # exit code of the probe where it cannot write what it made
_SOURCES = (("toolbox", "*.py"), ("egress", "relay.py"), ("snapshot", "archive.py"))
_PROBE = """
import sys
if sys.version_info < (3, 9):
    sys.exit("its Python is %d.%d; the toolbox needs 3.9" % sys.version_info[:2])
import os
import _ctypes, _socket, resource, select
{compiled}
here, uid, no_room = sys.argv[1], *map(int, sys.argv[2:])
def write(name, data):
    try:
        with open(here + "/" + name, "wb") as out:
            out.write(data)
    except OSError as error:
        print(error.strerror)
        sys.exit(no_room)
if not any(os.access(folder + "/bash", os.X_OK) for folder in os.environ["PATH"].split(":")):
    sys.exit("it has no bash")
for name in os.listdir(here):
    if name.endswith(".py"):
        write(name + "c", compiled(open(here + "/" + name, "rb").read(), name))
for name, line in (("passwd", f"agent:x:{uid}:{uid}:agent:/work:/bin/bash"), ("group", f"agent:x:{uid}:")):
    lines = []
    if os.path.exists("/etc/" + name):
        lines = open("/etc/" + name, errors="replace").read().splitlines()
    if not any(entry.split(":")[2:3] == [str(uid)] for entry in lines):
        lines.append(line)
    write(name, ("\\n".join(lines) + "\\n").encode("utf-8", "replace"))
""".replace("{compiled}", COMPILED)


@dataclass(frozen=True)
class ContainerImage:
    """Image that was probed.

    Attributes:
        id: its digest: a name may move to another image, the probed one does not change.
        folder: on the host, mounted at `TOOLS`.
        volumes: paths that the image declares as volumes; they must not become writable disk without a limit.
        in_place: own folders that begin with files of the image; they lie in the writable layer of each container.
    """

    id: str
    folder: Path
    volumes: tuple[str, ...]
    in_place: tuple[str, ...] = ()

    @property
    def binds(self) -> list[str]:
        """Mounts of every container of the image, all read-only."""
        users = [f"{self.folder}/{name}:/etc/{name}:ro" for name in ("passwd", "group")]
        return [f"{self.folder}:{TOOLS}:ro", *users]


def look_at(
    engine: ContainerEngine, name: str, root: Path, settings: dict[str, Any], labels: dict[str, str]
) -> ContainerImage:
    """Inspects and probes an image.

    Args:
        root: parent of the folders with tools, one per image.
        settings: of the probe's container, as `create_host_config` takes them.
        labels: of the probe's container.

    Raises:
        SandboxImageUnusable: the image does not exist, or does not fulfil the requirements of sandboxes.
        SandboxUnavailable: the temp folder is full.
    """
    try:
        about = engine.ask(lambda api: api.inspect_image(name))
    except Exception as error:
        if engine.is_absent(error):
            raise _unknown(engine, name) from None
        raise
    folder = root / about["Id"].removeprefix("sha256:")[:12]
    if not folder.exists():
        try:
            folder.mkdir()
            folder.chmod(0o777)  # the probe is not root; the parent folder keeps other users of the host out
            for room, pattern in _SOURCES:
                for source in data_path("tools", room).glob(pattern):
                    (folder / source.name).write_bytes(source.read_bytes())
            _probe(engine, name, about["Id"], folder, settings, labels)
            (folder / "filter.bpf").write_bytes(toolbox_filter())
            folder.chmod(0o755)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)  # else it would be taken for complete
            if isinstance(error, OSError) and error.errno is not None:  # else it is one of the engine
                raise no_room("docker", error.strerror) from None
            raise
    return ContainerImage(about["Id"], folder, tuple(about["Config"].get("Volumes") or ()))


def _probe(
    engine: ContainerEngine, name: str, id: str, folder: Path, settings: dict[str, Any], labels: dict[str, str]
) -> None:
    argv = ["python3", "-I", "-S", "-B", "-c", _PROBE, TOOLS, str(UID), str(_NO_ROOM)]

    def run(api: Any) -> tuple[int, str]:
        host = api.create_host_config(**settings, binds=[f"{folder}:{TOOLS}"])
        made = api.create_container(
            id, entrypoint=argv, user=f"{UID}:{UID}", labels=labels, host_config=host, working_dir="/"
        )
        try:
            api.start(made["Id"])
            code = api.wait(made["Id"])["StatusCode"]
            return code, api.logs(made["Id"], tail=20).decode("utf-8", "replace").strip()
        finally:
            api.remove_container(made["Id"], force=True, v=True)

    try:
        code, said = engine.ask(run, PROBE_S)
    except Exception as error:
        if not (refused := engine.refused(error)):
            raise
        code, said = 127, "it has no python3" if "executable file not found" in refused else refused
    if code == _NO_ROOM:
        raise no_room("docker", said)
    if code != 0:
        raise SandboxImageUnusable(
            f"the image {name!r} cannot be a sandbox: {said or f'the probe ended with code {code}'}",
            place="sandbox.spec.image",
            remedy="add python3 (3.9 or newer) and bash to it, for example: RUN apt-get install -y python3 bash",
        )


_OWN = """
import os, sys
uid, found = int(sys.argv[1]), []
for folder in sys.argv[2:]:
    if os.path.realpath(folder) == os.path.normpath(folder) and os.path.isdir(folder) and os.listdir(folder):
        found.append(folder)
        for at, folders, files in os.walk(folder):
            os.chown(at, uid, uid)
            for name in folders + files:
                os.chown(at + "/" + name, uid, uid, follow_symlinks=False)
print("\\0".join(found))
"""
OWN_S = 600.0
"""Seconds in which the files of own folders must have got their owner."""


def with_own_folders(
    engine: ContainerEngine, image: ContainerImage, folders: Sequence[str], labels: dict[str, str]
) -> ContainerImage:
    """Returns the image in which own folders that hold files belong to the user of the sandboxes.

    A short-lived container, which runs as root and without a network, gives them to the user; the engine keeps its
    changes as an image without a name.

    Raises:
        SandboxImageUnusable: the files cannot be given to the user.
    """
    volumes = [PurePosixPath(each) for each in image.volumes]
    wanted = [each for each in folders if not any(PurePosixPath(each).is_relative_to(at) for at in volumes)]
    wanted = engine.ask(lambda api: _filled(engine, api, image.id, wanted, labels))
    if not wanted:
        return image
    argv = ["python3", "-I", "-S", "-B", "-c", _OWN, str(UID), *wanted]

    def run(api: Any) -> tuple[int, str, str]:
        rights = {"cap_drop": ["ALL"], "cap_add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"], "network_mode": "none"}
        host = api.create_host_config(**rights, security_opt=["no-new-privileges:true"])
        settings = {"entrypoint": argv, "user": "0:0", "labels": labels, "host_config": host, "working_dir": "/"}
        made = api.create_container(image.id, **settings)
        try:
            api.start(made["Id"])
            code = api.wait(made["Id"])["StatusCode"]
            said = api.logs(made["Id"], tail=20).decode("utf-8", "replace").strip("\n")
            kept = said if code == 0 else ""
            changes = "\n".join(f"LABEL {name}={value}" for name, value in labels.items() if value)
            return code, said, api.commit(made["Id"], changes=changes)["Id"] if kept else image.id
        finally:
            api.remove_container(made["Id"], force=True, v=True)

    code, said, id = engine.ask(run, OWN_S)
    if code != 0:
        raise SandboxImageUnusable(
            f"the files of {', '.join(wanted)} cannot be given to the user of the sandbox: {said[-300:]}",
            place="sandbox.spec.workdir",
        )
    return replace(image, id=id, in_place=tuple(filter(None, said.split("\0"))))


def _filled(engine: ContainerEngine, api: Any, id: str, folders: Sequence[str], labels: dict[str, str]) -> list[str]:
    """Returns the folders in which an image has files. Its container is made, and never runs."""
    made = api.create_container(id, command=["none"], entrypoint=[], labels=labels)
    found = []
    try:
        for folder in folders:
            try:
                packed, _ = api.get_archive(made["Id"], folder)
            except Exception as error:
                if not engine.refused(error):  # else: it does not exist
                    raise
                continue
            head = b""
            while len(head) < _HEAD and (part := next(packed, b"")):
                head += part
            packed.close()
            with suppress(tarfile.ReadError), tarfile.open(fileobj=io.BytesIO(head), mode="r|") as archive:
                found += [folder] if archive.next() and archive.next() else []
    finally:
        api.remove_container(made["Id"], force=True, v=True)
    return found


_HEAD = 16384
"""Bytes of a packed folder that tell whether anything is in it."""


def _unknown(engine: ContainerEngine, name: str) -> SandboxImageUnusable:
    tags = sorted(tag for image in engine.ask(lambda api: api.images()) for tag in image.get("RepoTags") or ())
    there = ", ".join(tag for tag in tags if not tag.startswith("<none>")) or "none"
    short = name.removeprefix("agentrl/").removesuffix(":latest")
    ours = name.startswith("agentrl/")
    return SandboxImageUnusable(
        f"the engine has no image {name!r}; it has: {there}",
        place="sandbox.spec.image",
        remedy=f"agentrl sandbox build {short}" if ours else f"docker pull {shlex.quote(name)}, or build it",
    )
