"""Small root file systems: copies of the host's programs."""

from __future__ import annotations

import _ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("/usr/bin/python3", "/usr/bin/bash", "/usr/bin/cat")
"""What the toolbox runs on, and one more."""


def copyable(programs: Sequence[str] = PROGRAMS) -> bool:
    """Whether this host has the programs."""
    return all(map(os.path.exists, programs))


def build_rootfs(root: Path, programs: Sequence[str] = PROGRAMS, mine: str = "my own") -> None:
    """Programs with their libraries, and Python's; `/etc/mine` says which root file system it is."""
    for name in ("usr", "etc"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "mine").write_text(mine)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for program in (*programs, _ctypes.__file__):
        ldd = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for path in [program, *(word for word in ldd.split() if word.startswith("/"))]:
            target = root / "usr" / path.lstrip("/").removeprefix("usr/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(Path(path).read_bytes())
            target.chmod(0o755)
    library = f"/usr/lib/{Path('/usr/bin/python3').resolve().name}"
    subprocess.run(["cp", "-r", library, str(root / "usr/lib")], check=True)
