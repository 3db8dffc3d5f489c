"""Folders of a root file system that sandboxes may change: each sandbox sees a copy of its own.

As root the copy is an overlay: what a sandbox changes lies in memory, the rest is shared and read-only. Otherwise the
sandbox copies the files when it starts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from agentrl.types.sandbox import SandboxSpec

HELD = "/run/agentrl/held"
"""Place inside of the originals, where a sandbox copies them itself."""

COPY = """
import shutil, sys
shutil.copytree(sys.argv[1], sys.argv[2], symlinks=True, dirs_exist_ok=True)
"""
"""Program that copies them."""

# Every mount is in the mount namespace of the sandbox, and ends with it. Each folder has a tmpfs of its own, whose size
# is the limit. An upper layer must have owner and mode of the folder, which are those of the merged one.
_LAYERS = """
own=$1 size=$2; shift 2
mount -t tmpfs -o mode=0755 agentrl "$own" || exit
while [ "$1" != -- ]; do
    n=$((${n:-0} + 1)) at=$own/$n
    mkdir "$at" && mount -t tmpfs -o "mode=0755,size=$size" agentrl "$at" && mkdir "$at/upper" "$at/work" "$at/all" &&
        chown --reference="$1" "$at/upper" && chmod --reference="$1" "$at/upper" &&
        mount -t overlay -o "lowerdir=$1,upperdir=$at/upper,workdir=$at/work,redirect_dir=on" agentrl "$at/all" || exit
    shift
done
shift
exec "$@"
"""


def layered(own: Path, size: int, lowers: Sequence[Path], command: Sequence[str]) -> list[str]:
    """Returns the command with overlays over `lowers`, see `layer`, in a mount namespace of its own.

    Args:
        own: an empty folder, the same for all sandboxes.
        size: of what a sandbox may change in each folder, bytes.
    """
    alone = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _LAYERS, "sh"]
    return [*alone, str(own), str(size), *map(str, lowers), "--", *command]


def layer(own: Path, number: int) -> str:
    """Returns the path of an overlay; the first has number 1."""
    return f"{own}/{number}/all"


def can_layer(own: Path) -> bool:
    """Returns True if this machine mounts overlays for us."""
    if os.geteuid() != 0 or set(str(own)) & set(",:\\") or shutil.which("unshare") is None:
        return False
    command = layered(own, 1 << 20, [own.parent], ["true"])
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


def held_in(root: str | None, spec: SandboxSpec) -> list[str]:
    """Returns the own folders of a spec in which a root file system has files."""
    if root is None:
        return []
    found = []
    for folder in spec.folders_of_image:
        at = os.path.realpath(f"{root}{folder}")
        if at == os.path.realpath(root) + os.path.normpath(folder) and os.path.isdir(at) and os.listdir(at):
            found.append(folder)
    return found


def owned_copy(source: str, target: Path, owner: int) -> None:
    """Copies a folder, and gives all of it to the user of the sandboxes. The copy appears when it is complete.

    Raises:
        OSError: a file cannot be read, or the disk is full.
    """
    partial = target.with_name(f".{target.name}")
    try:
        done = subprocess.run(
            ["cp", "-a", "--reflink=auto", source, str(partial)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise OSError(done.stderr.strip()[-300:])
        for folder, folders, files in os.walk(partial):
            os.chown(folder, owner, owner)
            for name in (*folders, *files):
                os.chown(f"{folder}/{name}", owner, owner, follow_symlinks=False)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
