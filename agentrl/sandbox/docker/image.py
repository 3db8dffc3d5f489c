"""Prepares arbitrary images for sandboxes: adds the toolbox, and a user to run as.

A short-lived container of the image compiles the toolbox with the image's own Python (byte code of another version is
useless) and so shows, before the first episode, that the image fulfils the requirements of sandboxes.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
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
    """

    id: str
    folder: Path
    volumes: tuple[str, ...]

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
