"""Images of task folders: their Dockerfiles, built by a container engine.

The tag of an image has the hash of the folder and of its bases: an unchanged folder is built once. `FROM` is looked up
in a table first, for machines that reach no registry. The engine's classic builder is used, which every engine has;
what only BuildKit knows (here-documents, `--chmod`, cache mounts) is written for it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from agentrl.integrations.harbor.dockerfile import instructions, replaced
from agentrl.sandbox.images import REPOSITORY
from agentrl.types.errors import TaskError
from agentrl.types.reporter import report_work

TASKS = "agentrl-task/"
"""Prefix of the images of task folders."""

_CALL_S = 60
_NO_SHELL = re.compile(r'(?:exec|stat)[: ]+"?/bin/(?:sh|bash)"?.*no such file', re.IGNORECASE)


@functools.cache
def engine_api(host: str | None) -> Any:
    """Returns a client of the container engine; None if none answers, or the package `docker` is missing.

    Args:
        host: `DOCKER_HOST`, so that another one is asked anew.
    """
    try:
        import docker
    except ImportError:
        return None
    try:
        api = docker.from_env(timeout=_CALL_S).api
        api.ping()
    except docker.errors.DockerException:
        return None
    return api


def build(folder: Path, name: str, api: Any, bases: Mapping[str, str], limit_s: float) -> str:
    """Builds the image of a folder with a Dockerfile, unless it is there.

    Args:
        name: name of the task, part of the tag.
        bases: images to take in place of those that `FROM` names.
        limit_s: of the whole build.

    Returns:
        The image's name.

    Raises:
        TaskError: a base is not in the engine, the build failed, or it did not end in time.
    """
    import docker

    path = folder / "Dockerfile"
    text, ids = _rewritten(path, api, bases)
    tag = f"{TASKS}{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}:{_hash(folder, text, ids)}"
    try:
        api.inspect_image(tag)
        return tag
    except docker.errors.ImageNotFound:
        pass
    ignored = folder / ".dockerignore"
    exclude = ignored.read_text().splitlines() if ignored.is_file() else []
    context = docker.utils.tar(str(folder), exclude=exclude, dockerfile=("Dockerfile.agentrl", text))
    place, deadline, said = str(path), time.monotonic() + limit_s, list[str]()
    late = TaskError(
        f"its build did not end within {limit_s:g} s: {{}}",
        place=place,
        remedy="raise build_timeout_sec of task.toml, mend the Dockerfile, or leave the task out (tasks.exclude)",
    )
    client, answers = docker.from_env(timeout=limit_s).api, list[Any]()
    client.hooks["response"].append(lambda answer, **_: answers.append(answer))
    network = None if api.networks(names=["bridge"]) else "none"
    report_work(f"build of {name}", 0, 0)
    try:
        steps = client.build(
            fileobj=context, custom_context=True, dockerfile="Dockerfile.agentrl", tag=tag, rm=True, forcerm=True,
            decode=True, timeout=limit_s, network_mode=network, labels={"agentrl.task": name},
        )  # fmt: skip
        for step in steps:
            said.append(str(step.get("stream") or step.get("error") or "").strip())
            if step.get("error"):
                raise _failed(place, said)
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
    except docker.errors.APIError as error:
        raise _failed(place, [*said, str(error.explanation)]) from None
    except TaskError:
        raise
    except Exception as error:  # of the library below the client: only its text tells that a time is over
        if "timed out" not in str(error):
            raise TaskError(f"the container engine broke off: {error}", place=place) from None
        raise TaskError(late.message.format(_last(said)), place=place, remedy=late.remedy) from None
    finally:
        for answer in answers:
            answer.close()  # ends a build that has not ended
        client.close()
        report_work(f"build of {name}", 1, 1)
    return tag


def _failed(place: str, said: list[str]) -> TaskError:
    tail = "\n".join(each for each in said[-6:] if each)[-800:]
    if _NO_SHELL.search(tail):
        remedy = "take a base with a shell (tasks.args.bases), or leave the task out (tasks.exclude)"
        return TaskError("its base image has no shell, which RUN needs", place=place, remedy=remedy)
    remedy = "mend the Dockerfile, replay it (tasks.args.build: false), or leave the task out (tasks.exclude)"
    return TaskError(f"its build failed: {tail}", place=place, remedy=remedy)


def _last(said: list[str]) -> str:
    return next((each for each in reversed(said) if each), "nothing was said")[:200]


def _hash(folder: Path, text: str, ids: list[str]) -> str:
    found = hashlib.sha256("\0".join([text, *ids]).encode())
    for path in sorted(folder.rglob("*")):
        name = f"{path.relative_to(folder)}\0"
        if path.is_symlink():
            found.update(f"{name}-> {path.readlink()}\0".encode())
        elif path.is_file():
            found.update(f"{name}{path.stat().st_mode & 0o111}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _rewritten(path: Path, api: Any, bases: Mapping[str, str]) -> tuple[str, list[str]]:
    """Returns the Dockerfile for the classic builder, and the ids of its bases."""
    known, stages, lines, ids = dict[str, str](), set[str](), list[str](), list[str]()
    for number, word, rest in instructions(path.read_text(errors="replace")):
        upper, place = word.upper(), f"{path}:{number}"
        if upper == "ARG" and "=" in rest:
            name, _, value = rest.partition("=")
            known[name.strip()] = value.strip().strip("'\"")
        if upper == "FROM":
            words = [each for each in rest.split() if not each.startswith("--")]
            if not words:
                raise TaskError("FROM names no image", place=place, remedy="mend the line")
            asked = replaced(words[0], known)
            if asked.lower() not in {*stages, "scratch"}:
                image = bases.get(asked) or bases.get(asked.partition("@")[0]) or asked
                ids.append(_id_of(image, asked, api, place))
                words[0] = image
            if len(words) == 3:
                stages.add(words[2].lower())
            lines.append(f"FROM {' '.join(words)}")
        else:
            lines += _classic(upper, rest)
    return "\n".join(lines) + "\n", ids


def _id_of(image: str, asked: str, api: Any, place: str) -> str:
    import docker

    try:
        return str(api.inspect_image(image)["Id"])
    except docker.errors.APIError:
        pass
    if image.startswith(REPOSITORY):
        get = f"agentrl sandbox build {image.removeprefix(REPOSITORY).removesuffix(':latest')}"
    else:
        get = f"docker pull {shlex.quote(image)}"
    taken = "" if image == asked else f", which stands for {asked}"
    other = f'or take another image in its place: tasks.args.bases: {{"{asked}": agentrl/swe}}'
    raise TaskError(f"the engine has no image {image!r}{taken}", place=place, remedy=f"{get}; {other}")


_WRITTEN = r"(?:--chmod=(\d+)\s+)?<<(-?[\"']?)(\w+)[\"']?\s+(\S+)\n((?:.*\n)*)\s*\3$"
"""A file that stands in the Dockerfile: `COPY <<EOF /app/file`. With `/` at the end it has the name EOF."""


def _classic(word: str, rest: str) -> Iterator[str]:
    """Yields an instruction as the classic builder takes it."""
    if word == "RUN":
        rest = re.sub(r"^(--(mount=type=cache|network|security)\S*\s+)+", "", rest)
        if here := re.match(r"<<-?\s*['\"]?(\w+)['\"]?\n(.*)\n\s*\1$", rest, re.DOTALL):
            rest = json.dumps(["/bin/sh", "-c", here[2]])
        elif re.match(r"(?!--).*<<.*\n", rest):  # the shell reads the here-document: the builder takes one line
            rest = json.dumps(["/bin/sh", "-c", rest])
    elif word in ("COPY", "ADD") and (written := re.match(_WRITTEN, rest)):
        bits, opens, end, target, text = written.groups()
        at = shlex.quote(target + end if target.endswith("/") else target)
        marks = f"<<{opens}{end}{opens.lstrip('-')}"
        script = f"mkdir -p $(dirname {at}) && cat > {at} {marks} && chmod {bits or 644} {at}\n{text}{end}\n"
        yield f"RUN {json.dumps(['/bin/sh', '-c', script])}"
        return
    elif word in ("COPY", "ADD") and (mode := re.search(r"(?:^|\s)--chmod=(\S+)", rest)):
        rest = " ".join(re.sub(r"(^|\s)--(chmod=\S+|link(=\S+)?)", " ", rest).split())
        yield f"{word} {rest}"
        words = [each for each in (json.loads(rest) if rest.startswith("[") else shlex.split(rest)) if each[:2] != "--"]
        *sources, target = words
        into = target.endswith(("/", "/.")) or target in (".", "..") or len(sources) > 1
        paths = [f"{target.rstrip('/')}/{PurePosixPath(each).name}" for each in sources] if into else [target]
        yield f"RUN chmod -R {mode[1]} {' '.join(paths)}"
        return
    yield f"{word} {rest}"
