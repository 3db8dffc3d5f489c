"""Installs the Debian packages that tests need, in one call of apt-get: `python scripts/programs.py`.

Without root, or without apt-get, prints the command and installs nothing: those tests are then skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {
    "bwrap": "bubblewrap",
    "chromium": "chromium",
    "chromium-headless-shell": "chromium-headless-shell",
    "cmake": "cmake",
    "debootstrap": "debootstrap",
    "dockerd": "docker.io",
    "g++": "g++",
    "git": "git",
    "java": "default-jre-headless",
    "make": "make",
}
"""Packages by the program that they are wanted for."""

PAGES = {
    "/usr/share/doc/python3.11/html/objects.inv": "python3.11-doc",
    "/usr/share/doc/sqlite3/limits.html": "sqlite3-doc",
}
"""Packages by a file of theirs: pages that an agent browses. Other releases of Debian lack them."""

DESKTOP = ROOT / "sandboxes/desktop/packages.txt"
"""Packages of an X server without a screen and an editor, all of them there if `mousepad` is."""


def missing() -> list[str]:
    """Returns the packages that are wanted and not installed."""
    packages = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    packages += [package for file, package in PAGES.items() if not Path(file).exists()]
    if not shutil.which("mousepad"):
        packages += [line.partition("#")[0].strip() for line in DESKTOP.read_text().splitlines()]
    return [package for package in packages if package]


def main() -> int:
    packages = missing()
    if not packages:
        return 0
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"]
    if os.geteuid() or not shutil.which("apt-get"):
        print(
            f"not installed, tests that need them are skipped: sudo {' '.join([*install, *packages])}", file=sys.stderr
        )
        return 0
    print(f"installing {' '.join(packages)}", flush=True)
    subprocess.run(["apt-get", "update", "-qq"], check=False)
    offered = [p for p in packages if subprocess.run(["apt-cache", "show", p], capture_output=True).returncode == 0]
    for package in set(packages) - set(offered):
        print(f"{package}: apt-get does not know it", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run([*install, *offered], stdout=subprocess.DEVNULL, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
