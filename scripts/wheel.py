"""Builds the wheel and the sdist, installs the wheel as its users do, and uses it outside of this checkout.

    python -m scripts.wheel                   # all of it; what it makes is in build/wheel
    python -m scripts.wheel --only core       # one of: files, core, train, light, resolve

files: twine accepts both, and the wheel has every file of the package and of its data. core, train, light: a fresh
environment with these extras, on each Python that is promised and found here (core) or on this one; `agentrl doctor`,
the lists, a rollout and, with `train`, a training. resolve: pip would find versions for every other extra.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from scripts.environments import ROOT, indexes, uv

OUT = ROOT / "build/wheel"
TWINE = "twine==7.0.0"
DATA = ("recipes", "sandboxes", "tools")
LIGHT = ("search", "duckdb", "docker", "maths", "vision", "web", "http", "mcp", "tables", "tensorboard")
"""Extras of a few megabytes, without torch."""
LISTED = "from agentrl.commands.plug_ins import kinds, plug_ins; [plug_ins(kind['name']) for kind in kinds()]"
"""Lists the plug-ins of every kind."""
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TINY = (
    "model={scratch: {hidden: 16, layers: 1, heads: 1, vocab_size: 300, max_context: 1024}}",
    "agent.format=tags",
    "warm_start={script: oracle, episodes: 4, steps: 2, batch: 4}",
    "train={iterations: 1, groups: 1, group_size: 2, minibatch: 2}",
    "eval.episodes=2",
)


class WheelError(Exception):
    """A fault of the wheel, or of what was installed from it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("files", "core", "train", "light", "resolve"))
    only = parser.parse_args().only
    try:
        wheel = build(OUT)
        for name, step in {"files": files, "core": core, "train": train, "light": light, "resolve": resolve}.items():
            if only in (None, name):
                step(wheel)
                print(f"{name}: green", flush=True)
    except WheelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def build(folder: Path) -> Path:
    """Builds the sdist, and the wheel from it, in an empty `folder`. Returns the wheel."""
    shutil.rmtree(folder, ignore_errors=True)
    called(*uv(), "build", "--quiet", *indexes(), "--python", sys.executable, "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def files(wheel: Path) -> None:
    """Checks both files with twine, and the content of the wheel.

    Raises:
        WheelError: a file of the package or of its data is missing, or one is there that git does not know.
    """
    (sdist,) = wheel.parent.glob("*.tar.gz")
    called(*uv(), "tool", "run", "--quiet", *indexes(), TWINE, "check", "--strict", wheel, sdist)
    listed = called("git", "ls-files", "-co", "--exclude-standard", "--", "agentrl", *DATA, cwd=ROOT).splitlines()
    wanted = {name if name.startswith("agentrl/") else f"agentrl/_data/{name}" for name in listed}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("agentrl_framework-")}
    if wanted != found:
        raise WheelError(f"the wheel lacks {sorted(wanted - found)[:9]}, and has besides {sorted(found - wanted)[:9]}")


def core(wheel: Path) -> None:
    """Installs the wheel without extras on every promised Python that is here, and names those that are not."""
    for version in promised():
        python = here(version)
        if python is None:
            print(f"core: not tried on Python {version}, which is not installed here")
            continue
        with tempfile.TemporaryDirectory() as folder:
            used(environment(wheel, (), Path(folder) / "venv", python), Path(folder))
        print(f"core: green on Python {version}", flush=True)


def train(wheel: Path) -> None:
    """Installs it with `train`, and trains."""
    with tempfile.TemporaryDirectory() as folder:
        command = environment(wheel, ("train",), Path(folder) / "venv")
        used(command, Path(folder))
        sets = [part for line in TINY for part in ("--set", line)]
        called(command, "train", "toy", *sets, "--out", "trained", cwd=Path(folder))
        called(command, "check", "trained", cwd=Path(folder))


def light(wheel: Path) -> None:
    """Installs it with the light extras. All of their packages are there, and every tool can be listed."""
    with tempfile.TemporaryDirectory() as folder:
        command = environment(wheel, LIGHT, Path(folder) / "venv")
        used(command, Path(folder))
        asked = f"{PROJECT['name']}[{','.join(LIGHT)}]"
        code = f"from agentrl.types.packages import extras, lacking; print(extras() and lacking({asked!r}))"
        if (said := called(command.with_name("python"), "-c", code, cwd=Path(folder)).strip()) != "[]":
            raise WheelError(f"{asked} lacks {said}")
        rows = json.loads(called(command, "list", "tools", "--json", cwd=Path(folder)))
        if missing := {row["name"]: row["missing"] for row in rows if row["missing"]}:
            raise WheelError(f"tools that cannot be used with {asked}: {missing}")


def resolve(wheel: Path) -> None:
    """Resolves every other extra, with the torch of constraints.txt but for vLLM, which pins its own."""
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    for extra in PROJECT["optional-dependencies"]:
        if extra in ("train", *LIGHT):
            continue
        asked = f"{PROJECT['name']}[{extra}] @ {wheel.as_uri()}\n" + (f"{torch}\n" if extra != "vllm" else "")
        options = ("--quiet", "--no-header", "--no-annotate", *indexes(), "--python-version", "3.11", "-")
        said = called(*uv(), "pip", "compile", *options, given=asked)
        print(f"resolve: {extra}: {len(said.splitlines())} packages", flush=True)


def promised() -> list[str]:
    """Lists the versions of Python that pyproject.toml names: `3.11`, ..."""
    ends = (each.rpartition(" :: ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each)
    return sorted(ends, key=lambda version: int(version.partition(".")[2]))


def here(version: str) -> Path | None:
    """Returns an interpreter of a version on this machine, of the path or of pyenv; None: there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_the_path = shutil.which(f"python{version}")  # may be a shim of a version that is switched off
    own = sorted(str(path) for path in pyenv.glob(f"versions/{version}.*/bin/python"))
    asked = ("-c", "import sys; print('{}.{}'.format(*sys.version_info))")
    for python in [*([on_the_path] if on_the_path else []), *own]:
        done = subprocess.run([python, *asked], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return Path(python)
    return None


def environment(wheel: Path, extras: tuple[str, ...], folder: Path, python: Path | None = None) -> Path:
    """Makes an environment with the wheel and its extras alone. Returns the command `agentrl` in it."""
    called(*uv(), "venv", "--quiet", "--python", python or sys.executable, folder)
    asked = f"{PROJECT['name']}[{','.join(extras)}] @ {wheel.as_uri()}"
    install: list[str | Path] = [*uv(), "pip", "install", "--quiet", "--python", folder / "bin/python", *indexes()]
    called(*install, "-c", ROOT / "constraints.txt", asked)
    return folder / "bin/agentrl"


def used(command: Path, folder: Path) -> None:
    """Uses what is installed, as someone without a checkout: the doctor, lists, an environment of one's own, a rollout.

    Raises:
        WheelError: a command failed, or the package that it found is not the one that was installed.
    """
    findings = {
        row["what"].partition(" ")[0]: row for row in json.loads(called(command, "doctor", "--json", cwd=folder))
    }
    if not findings[PROJECT["name"]]["ok"]:
        raise WheelError(f"agentrl doctor: {findings[PROJECT['name']]}")
    shipped = {row["name"] for row in json.loads(called(command, "recipe", "list", "--json", cwd=folder))}
    methods = json.loads(called(command, "recipe", "list", "--methods", "--json", cwd=folder))
    shipped |= {f"methods/{row['name']}" for row in methods}
    if shipped != (wanted := recipes()):
        raise WheelError(f"recipes: {sorted(shipped ^ wanted)}")
    called(command.with_name("python"), "-c", LISTED, cwd=folder)  # in one process: each takes seconds to start
    called(command, "init", "toy", "--like", "qa", cwd=folder)
    for recipe in ("toy", *(["quickstart"] if shutil.which("bwrap") else [])):
        called(command, "rollout", recipe, "--script", "oracle", "--n", "4", "--out", f"of-{recipe}", cwd=folder)
        called(command, "check", f"of-{recipe}", cwd=folder)


def recipes() -> set[str]:
    """Returns the recipes of the checkout by the names under which commands list them; `methods/NAME` for a method."""
    folder = ROOT / "recipes"
    folders = {
        path.parent.relative_to(folder) for depth in ("*", "methods/*") for path in folder.glob(f"{depth}/recipe.yaml")
    }
    methods = {path.relative_to(folder).with_suffix("") for path in folder.glob("methods/*.yaml")}
    variants = {path.relative_to(folder) for path in folder.glob("*/*.yaml") if path.name != "recipe.yaml"}
    return {path.as_posix() for path in folders | methods | {path for path in variants if path.parts[0] != "methods"}}


def called(*command: str | Path, cwd: Path | None = None, given: str | None = None) -> str:
    """Runs a command without this checkout in its environment. Returns what it printed.

    Raises:
        WheelError: it failed; with all that it said.
    """
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=env, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelError(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
