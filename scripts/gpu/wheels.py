"""Fetches the wheels that `make gpu` brings along: `python -m scripts.gpu.wheels [--folder .gpu-wheels]`.

They are for Python 3.12 on Linux, x86-64, whatever runs this. Fails, and leaves the folder as it was, if they take
more than 40 MiB, or if one of them needs a package that is neither among them nor in machine.txt.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename

from scripts.gpu.packages import HERE, canonical, listed

MOST_BYTES = 40 << 20
PYTHON = "3.12"
PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2014", "2010", "1")
MARKERS = {
    "python_version": PYTHON, "python_full_version": f"{PYTHON}.3", "implementation_name": "cpython", "extra": "",
    "platform_python_implementation": "CPython", "platform_system": "Linux", "platform_machine": "x86_64",
    "sys_platform": "linux", "os_name": "posix",
}  # fmt: skip


class Refused(Exception):
    """The wheels cannot be used; the text says why, and what to change."""


def fetch(folder: Path) -> list[Path]:
    """Fills a folder with the wheels of wheels.txt.

    Raises:
        Refused: see above.
        subprocess.CalledProcessError: pip does not find one.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as new:
        platforms = [part for tag in PLATFORMS for part in ("--platform", _tag(tag))]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
             "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp", *platforms,
             "-d", new, "-r", HERE / "wheels.txt"],
            check=True,
        )  # fmt: skip
        inspect(sorted(Path(new).glob("*.whl")))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(new, folder)
    return sorted(folder.glob("*.whl"))


def inspect(wheels: Sequence[Path]) -> None:
    """Checks that these wheels are those of wheels.txt, small enough, and need nothing else.

    Raises:
        Refused: see above.
    """
    found = {canonical(name): str(version) for name, version, _, _ in (parse_wheel_filename(w.name) for w in wheels)}
    wanted, there = listed("wheels.txt"), listed("machine.txt")
    if found != wanted:
        differing = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        raise Refused(f"not the wheels of wheels.txt: {', '.join(differing)}; run: make gpu-wheels")
    if (size := sum(wheel.stat().st_size for wheel in wheels)) > MOST_BYTES:
        largest = max(wheels, key=lambda wheel: wheel.stat().st_size)
        raise Refused(
            f"the wheels take {size / (1 << 20):.1f} MiB, more than {MOST_BYTES >> 20}: take one out of wheels.txt, "
            f"the largest is {largest.name}"
        )
    for wheel in wheels:
        for need in needs(wheel):
            name = canonical(need.name)
            if name not in there and not (name in found and need.specifier.contains(found[name], prereleases=True)):
                raise Refused(f"{wheel.name} needs {need}: add it to wheels.txt, or to machine.txt if it is there")


def needs(wheel: Path) -> list[Requirement]:
    """Returns the requirements of a wheel on the machine where it will be installed."""
    with zipfile.ZipFile(wheel) as archive:
        (about,) = (
            name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1
        )
        lines = HeaderParser().parsestr(archive.read(about).decode()).get_all("Requires-Dist") or []
    required = map(Requirement, lines)
    return [each for each in required if each.marker is None or each.marker.evaluate(MARKERS)]


def _tag(version: str) -> str:
    return f"manylinux_{version}_x86_64" if "_" in version else f"manylinux{version}_x86_64"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".gpu-wheels"))
    given = parser.parse_args()
    try:
        wheels = fetch(given.folder)
    except Refused as why:
        sys.exit(str(why))
    for wheel in wheels:
        print(f"{wheel.stat().st_size / (1 << 20):6.2f} MiB  {wheel.name}")
    print(f"{sum(wheel.stat().st_size for wheel in wheels) / (1 << 20):6.2f} MiB in {given.folder}")


if __name__ == "__main__":
    main()
