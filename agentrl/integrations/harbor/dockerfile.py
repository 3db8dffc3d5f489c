"""Replay of a Dockerfile in a sandbox: files, folders, variables and commands, except installs of programs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from agentrl.integrations.harbor.inside import require_inside
from agentrl.types.errors import TaskError
from agentrl.types.sandbox import TAKEN

_INSTALLS = {
    "apt-get", "apt", "apk", "yum", "dnf", "microdnf", "pip", "pip3", "pipx", "uv", "conda", "mamba", "npm",
    "yarn", "pnpm", "gem", "cargo", "rustup", "go", "curl", "wget", "git-lfs", "add-apt-repository", "dpkg",
    "locale-gen", "useradd", "groupadd", "adduser", "addgroup", "usermod", "chown", "chgrp", "chpasswd",
    "passwd", "update-alternatives", "service", "systemctl", "ldconfig", "R", "Rscript", "a2enmod", "su",
    "sudo", "crontab", "setcap", "mknod", "mount",
}  # fmt: skip
"""Programs whose effects only an image holds: they install, use the network, or need root."""
LEAVE_OUT = "leave the task out (tasks.exclude, or tasks.args.skip: true)"
"""Remedy for each refused task."""
_DEEP = ("home", "mnt", "opt", "srv", "var")
_PATH = re.compile(r"(?<![\w./$}~:-])/[a-z_][\w.+-]*(?:/[\w.+-]+)*")
_AND = re.compile(r"""((?:(?<!\S)\#[^\n]*|[^&'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|&(?!&))+)(?:&&|$)""", re.DOTALL)
"""Commands of `a && b`; `&&` within quotes and comments does not split."""
_PACKAGE_LISTS = re.compile(r"rm\s+-\w+\s+(/var/(lib/apt/lists|cache/apt|cache/apk)\S*\s*)+")
_VARIABLE = re.compile(r"\$(?:(?P<name>\w+)|\{(?P<braced>\w+)(?::(?P<how>[-+])(?P<word>[^}]*))?\})")
_IGNORED = {"LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "MAINTAINER", "STOPSIGNAL", "HEALTHCHECK", "USER",
            "VOLUME", "ONBUILD"}  # fmt: skip


@dataclass(frozen=True)
class Copy:
    """Copy step: files of the task folder and their target in the sandbox."""

    sources: tuple[Path, ...]
    target: str
    into: bool
    mode: str | None = None


@dataclass(frozen=True)
class RunStep:
    """Run step: a command, its working folder and its shell."""

    command: str
    folder: str
    shell: tuple[str, ...] = ("/bin/sh", "-c")


@dataclass
class Plan:
    """Content of a sandbox, in the order of the Dockerfile.

    Attributes:
        image: image of the last stage.
        writable: folders written by the steps or by an agent.
        left: commands left to the image, not run.
        only_image: line and target of each copy that only an image can hold, because it goes to `/etc` and the like.
        folders: folders created by `WORKDIR`.
        shell: shell of the following commands.
    """

    image: str = ""
    workdir: str = ""
    env: dict[str, str] = field(default_factory=dict)
    steps: list[Copy | RunStep] = field(default_factory=list)
    writable: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    only_image: list[tuple[str, str]] = field(default_factory=list)
    folders: set[str] = field(default_factory=set)
    shell: tuple[str, ...] = RunStep.shell


def plan_of(path: Path) -> Plan:
    """Parses a Dockerfile; its build context is its folder.

    Raises:
        TaskError: an instruction cannot be replayed in a sandbox; names the line.
    """
    plan, known = Plan(), dict[str, str]()
    for number, word, rest in instructions(path.read_text(errors="replace")):
        try:
            _take(plan, known, word.upper(), rest, path.parent, f"{path}:{number}")
        except FileNotFoundError as error:
            remedy = f"add it to {path.parent}, mend the line, or {LEAVE_OUT}"
            raise TaskError(str(error), place=f"{path}:{number}", remedy=remedy) from None
        except ValueError as error:
            raise TaskError(str(error), place=f"{path}:{number}", remedy=LEAVE_OUT) from None
    plan.writable |= {root_of(plan.workdir)} if plan.workdir else set()
    plan.writable.discard("")
    return plan


def last_workdir(text: str) -> str:
    """Returns the working folder of the last stage of a Dockerfile; "" if it names none."""
    plan, known = Plan(), dict[str, str]()
    for _, word, rest in instructions(text):
        if word.upper() in ("FROM", "ARG", "ENV", "WORKDIR"):
            _take(plan, known, word.upper(), rest, Path(), "")
    return plan.workdir


def _take(plan: Plan, known: dict[str, str], word: str, rest: str, context: Path, place: str) -> None:
    if word == "FROM":
        named = [part for part in rest.split() if not part.startswith("--")]
        if not named:
            raise ValueError("FROM names no image")
        plan.image, plan.workdir, plan.steps, plan.left, plan.only_image = named[0], "", [], [], []
    elif word == "ARG":
        name, _, value = rest.partition("=")
        known[name.strip()] = value.strip().strip("'\"")
    elif word == "ENV":
        pairs = _pairs(rest)
        for name, value in pairs.items():
            filled = replaced(value, known | plan.env)
            if name != "PATH":  # `/x:$PATH`: the image's PATH is unknown here
                plan.env[name] = filled
    elif word == "WORKDIR":
        folder = replaced(rest.strip().strip("'\""), known | plan.env)
        plan.workdir = str(PurePosixPath(plan.workdir or "/", folder))
        plan.folders.add(plan.workdir)
    elif word in ("COPY", "ADD"):
        _take_copy(plan, known, rest, context, place)
    elif word == "RUN":
        _run(plan, rest)
    elif word == "SHELL":
        plan.shell = tuple(map(str, json.loads(rest)))
    elif word not in _IGNORED:
        raise ValueError(f"unknown instruction {word}")


def replaced(text: str, variables: dict[str, str]) -> str:
    """Expands `$NAME`, `${NAME}`, `${NAME:-word}` and `${NAME:+word}`; an unknown name is empty."""

    def fill(match: re.Match[str]) -> str:
        value = variables.get(match["name"] or match["braced"], "")
        if match["how"] == "-":
            return value or str(match["word"])
        return (str(match["word"]) if value else "") if match["how"] == "+" else value

    return _VARIABLE.sub(fill, text)


def _take_copy(plan: Plan, known: dict[str, str], rest: str, context: Path, place: str) -> None:
    words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    if not all(isinstance(each, str) for each in words):
        raise ValueError(f"copies what is no list of paths: {rest[:80]}")
    flags, words = [w for w in words if w.startswith("--")], [w for w in words if not w.startswith("--")]
    words = [replaced(each, known | plan.env) for each in words]
    if len(words) < 2 or any(word.startswith(("http://", "https://", "<<")) for word in words):
        raise ValueError(f"copies what is no file of the folder: {rest[:80]}")
    *given, target = words
    where = str(PurePosixPath(plan.workdir or "/", target))
    parts = PurePosixPath(where).parts
    if len(parts) < 2 or (parts[1] in TAKEN and parts[1] != "tmp"):
        plan.left.append(f"COPY {rest}")
        plan.only_image.append((place, where))
        return
    if any(flag.startswith("--from") for flag in flags):
        raise ValueError("copies from another image or stage, which a sandbox cannot replay")
    sources: list[Path] = []
    for each in given:
        found = sorted(context.glob(each.strip("/"))) if each.strip("./") else [context]
        if not found:
            raise FileNotFoundError(f"there is no file {each} in {context}")
        for path in found:
            require_inside(context, path, place)
        sources += [path for path in found if path.name != "Dockerfile" or len(found) == 1]
    into = target.endswith(("/", "/.")) or where in plan.folders or len(sources) > 1 or sources[0].is_dir()
    in_root = len(parts) == 2 and not into
    if in_root and PurePosixPath(where).suffix:
        raise ValueError(f"copies to {where}: a sandbox holds no file in /")
    mode = next((flag.partition("=")[2] for flag in flags if flag.startswith("--chmod=")), None)
    plan.steps.append(Copy(tuple(sources), where, into, mode))
    plan.writable.add(_root(parts[1:] if into or in_root else parts[1:-1]))


def _run(plan: Plan, rest: str) -> None:
    """Adds the commands of a RUN to the plan, each part of `a && b` separately, as far as quotes allow a split."""
    kept = []
    for part in _commands(re.sub(r"^(--\w+=\S+\s+)+", "", rest)):
        if _of_image(part):
            plan.left.append(part)
        elif part:
            kept.append(part)
            plan.writable |= {root_of(found) for found in _PATH.findall(part)}
    if kept:
        plan.steps.append(RunStep(" && ".join(kept), plan.workdir or "/", plan.shell))


def _commands(rest: str) -> list[str]:
    """Splits a RUN at `&&`; a here-document, a list of words, or an unsplittable command gives one."""
    if script := re.match(r"<<-?\s*['\"]?\w+['\"]?\n(.*)\n\s*\w+$", rest, re.DOTALL):
        return [script[1]]
    if rest.startswith("["):
        with suppress(ValueError, TypeError):
            return [shlex.join(json.loads(rest))]
    found = [*_AND.finditer(rest)]
    whole = sum(len(each[0]) for each in found) == len(rest) and "<<" not in rest
    return [each[1].strip() for each in found] if whole else [rest]


def _of_image(part: str) -> bool:
    """Returns True if a command runs an installer or may write to folders that only an image has."""
    commands = [re.sub(r"^(\w+=\S*\s+)+", "", each).split() for each in re.split(r"[;|&\n]\s*", part)]
    programs = {PurePosixPath(words[0]).name for words in commands if words}
    of_python = any("-m" in words and not {"pip", "venv", "virtualenv"}.isdisjoint(words) for words in commands)
    in_system = any(PurePosixPath(path).parts[1] in TAKEN and not path.startswith("/tmp") for path in _targets(part))
    return bool(programs & _INSTALLS) or of_python or in_system or _PACKAGE_LISTS.fullmatch(part) is not None


def _targets(part: str) -> Iterator[str]:
    """Yields the paths that a command names and may write: all except those of programs that it runs."""
    for path in _PATH.findall(part):
        if not re.search(rf"(^|[;&|]\s*){re.escape(path)}", part) and not path.startswith("/dev/null"):
            yield path


def root_of(path: str) -> str:
    """Returns the folder that must be writable for `path`: `/app` of `/app/src/x`, `/opt/me` of `/opt/me/x`.

    A last part with a suffix is a file: `/opt` of `/opt/x.py`, "" of `/x.py`, because sandboxes have no files in `/`.
    """
    parts = PurePosixPath(path).parts[1:]
    return _root(parts[:-1] if PurePosixPath(path).suffix else parts)


def _root(folders: tuple[str, ...]) -> str:
    if not folders or folders[0] in TAKEN:
        return ""
    return "/" + "/".join(folders[: 2 if folders[0] in _DEEP else 1])


def roots_in(text: str) -> set[str]:
    """Returns `root_of` for all absolute paths in a text."""
    return {root_of(path) for path in _PATH.findall(text)} - {""}


def instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields line number, instruction and the rest; joins continued lines and keeps here-documents."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line.strip()
        while whole.endswith("\\"):
            _, more = next(lines, (0, ""))
            if not more.lstrip().startswith("#"):
                whole = f"{whole[:-1].rstrip()} {more.strip()}"
        if found := re.search(r"<<-?\s*['\"]?(\w+)['\"]?", whole):
            body = [whole]
            for _, more in lines:
                body.append(more)
                if more.strip() == found[1]:
                    break
            whole = "\n".join(body)
        word, _, rest = whole.partition(" ")
        yield number, word, rest.strip()


def _pairs(rest: str) -> dict[str, str]:
    if re.match(r"^\S+=", rest):
        return dict(pair.partition("=")[::2] for pair in shlex.split(rest))
    name, _, value = rest.partition(" ")
    return {name: value.strip()}
