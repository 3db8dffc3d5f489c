"""Export of recipes as Harbor task folders: `agentrl env export RECIPE --to harbor --out DIR`."""

from __future__ import annotations

import json
import logging
import random
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from agentrl.config.recipe import Recipe
from agentrl.config.rewards import RewardSettings
from agentrl.curriculum.task_source import load_tasks
from agentrl.engines.scripted import Say
from agentrl.registry.references import load_object
from agentrl.rewards.functions.verifiers import gold
from agentrl.sandbox.task_specs import TaskSpecs
from agentrl.types.errors import RecipeError
from agentrl.types.parts.content import text_of
from agentrl.types.paths import data_path
from agentrl.types.sandbox import NetworkAllow, SandboxSpec
from agentrl.types.task import Task

_log = logging.getLogger(__name__)

TOOLS = {"shell", "python", "files", "answer"}
"""Tools that Harbor's agents replace by their own shell."""
ANSWER = "answer.txt"
_MODES = {"none": "no-network", "public": "public", "allow": "allowlist"}


def export(recipe: Recipe, out: Path, n: int | None = None) -> list[Path]:
    """Writes one folder per task, of a recipe that Harbor's form can express (`inexpressible` returns None).

    Args:
        n: maximum number of tasks.

    Returns:
        The folders.

    Raises:
        RecipeError: `out` exists, or the tests of a task have a form that Harbor's verifier cannot run.
    """
    if out.exists():
        raise RecipeError(f"there is a {out} already", place="--out", remedy="take another folder, or move it away")
    specs = TaskSpecs(recipe.sandbox.spec)
    script = load_object(recipe.scripts["oracle"], recipe.base) if "oracle" in recipe.scripts else None
    folders = [
        _write(recipe, task, specs.of(task), script, out / folder_name(task.id))
        for task in load_tasks(recipe.tasks, recipe.base, recipe.seed).tasks[:n]
    ]
    (out / "README.md").write_text(_README.format(recipe.name))
    if any((settings.use or name) == "code_tests" for name, settings in recipe.rewards.items()):
        _log.warning("tests run in the container of the agent: %s says what could forge them", out / "README.md")
    return folders


_README = """\
# {}

Tasks for Harbor, written by `agentrl env export`. Every folder is one task.

The verifier (`tests/verify.py`) runs in the container that the agent used, as Harbor's shared verifiers do. Code under
test runs in processes of its own, without the tests and what they expect. If the verifier is root, these processes have
another user, who can neither read `tests/checks.json`, nor end or trace the verifier, nor leave a reward behind.
What remains:

- An agent that was root may have replaced Python or other programs, or left programs running that write the reward.
- A verifier that is not root shares its user with the code under test, which can then read `tests/checks.json` and
  write the reward.
"""


def inexpressible(recipe: Recipe, n: int | None = None) -> str | None:
    """Returns what of a recipe, or of its first `n` tasks, Harbor's own form cannot express; None: it can all of it."""
    spec = recipe.sandbox.spec
    tools = [each.use for each in recipe.tools]
    rewards = [_problem(name, settings) for name, settings in recipe.rewards.items() if settings.weight]
    problems = [
        next((f"the tool {each} exists only here" for each in tools if each not in TOOLS), None),
        next(filter(None, rewards), None),
        "its rewards have gates" if recipe.gate else None,
        "its rewards differ by task" if recipe.reward_of else None,
        "its sandbox has a root file system of this machine" if spec.rootfs else None,
        f"the agent {recipe.agent.use} plays only here" if recipe.agent.use != "tool_agent" else None,
    ]
    if said := next(filter(None, problems), None):
        return said
    tasks = load_tasks(recipe.tasks, recipe.base, recipe.seed).tasks[:n]
    return next((f"task {task.id} has {more}" for task in tasks if (more := _more(task)) is not None), None)


def _more(task: Task) -> str | None:
    if task.tools is not None:
        return "tools of its own"
    return None if all(isinstance(message["content"], str) for message in task.instruction) else "images"


def _problem(name: str, settings: RewardSettings) -> str | None:
    use = settings.use or name
    if use not in _CHECKS:
        return f"the reward {use} runs only here"
    known = {"key", "files", "timeout_s"}
    if settings.then or settings.settings.keys() - known:
        return f"rewards.{name} has then, or keys other than {', '.join(sorted(known))}"
    if use == "code_tests" and len(settings.settings.get("files") or ()) != 1:
        return f"rewards.{name} must take one file"
    return None


def _exact_match(task: Task, settings: dict[str, Any], spec: SandboxSpec) -> dict[str, Any]:
    return {"references": gold(task, settings.get("key", "answer"))}


def _code_tests(task: Task, settings: dict[str, Any], spec: SandboxSpec) -> dict[str, Any]:
    tests = task.data.get(settings.get("key", "tests"))
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        remedy = "only lists of Python statements can"
        raise RecipeError("tests of this form cannot be exported", place=f"task {task.id}", remedy=remedy)
    files = [str(PurePosixPath(spec.workdir, path)) for path in settings["files"]]
    named = task.data.get("entry_point")
    names = named if isinstance(named, list) else [named] if isinstance(named, str) else []
    return {"tests": tests, "files": files, "names": names, "timeout_s": settings.get("timeout_s", 10.0)}


def _state_check(task: Task, settings: dict[str, Any], spec: SandboxSpec) -> dict[str, Any]:
    state = task.data.get(settings.get("key", "state"))
    if not isinstance(state, list) or not state:
        raise RecipeError(f"no state checks: {state!r:.80}", place=f"task {task.id}", remedy="give a list")
    return {"state": state, "timeout_s": settings.get("timeout_s", 30.0)}


_CHECKS: dict[str, Callable[[Task, dict[str, Any], SandboxSpec], dict[str, Any]]] = {
    "exact_match": _exact_match, "code_tests": _code_tests, "state_check": _state_check
}  # fmt: skip


def _write(recipe: Recipe, task: Task, spec: SandboxSpec, script: Any, folder: Path) -> Path:
    components = [
        {"kind": settings.use or name, "weight": settings.weight,
         **_CHECKS[settings.use or name](task, settings.settings, spec)}
        for name, settings in recipe.rewards.items() if settings.weight
    ]  # fmt: skip
    answers = any(each["kind"] == "exact_match" for each in components)
    answer_file = f"{spec.workdir}/{ANSWER}"
    checks = {"workdir": spec.workdir, "answer_file": answer_file, "components": components}
    said = [recipe.agent.system or "", *(text_of(message["content"]) for message in task.instruction)]
    said += [f"Write your final answer to {answer_file}."] if answers else []
    files = {
        "instruction.md": "\n\n".join(filter(None, said)) + "\n",
        "task.toml": _toml(spec),
        "environment/Dockerfile": _dockerfile(spec),
        "tests/test.sh": "#!/bin/sh\npython3 /tests/verify.py\n",
        "tests/checks.json": json.dumps(checks, indent=1, ensure_ascii=False) + "\n",
        "solution/solve.sh": None if script is None else _solution(script, task, answer_file),
    }
    for path, text in files.items():
        if text is not None:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    for path, content in spec.files.items():
        held = folder / "environment" / "files" / str(PurePosixPath(spec.workdir, path)).lstrip("/")
        held.parent.mkdir(parents=True, exist_ok=True)
        held.write_bytes(content if isinstance(content, bytes) else content.encode())
    shutil.copy(data_path("tools", "harbor", "verify.py"), folder / "tests" / "verify.py")
    if any(each["kind"] == "code_tests" for each in components):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(data_path("tools", "verify"), folder / "tests" / "programs", ignore=ignore)
    return folder


def _toml(spec: SandboxSpec) -> str:
    environment: dict[str, Any] = {"network_mode": _MODES[spec.network_kind]}
    if isinstance(spec.network, NetworkAllow):
        environment["allowed_hosts"] = list(spec.network.allow)
    environment |= {"cpus": spec.cpu} if spec.cpu else {}
    environment |= {"memory_mb": spec.memory_mb} if spec.memory_mb else {}
    lines = (f"{key} = {json.dumps(value)}" for key, value in environment.items())
    return "\n".join(['schema_version = "1.0"', "", "[environment]", *lines, ""])


def _dockerfile(spec: SandboxSpec) -> str:
    tops = sorted({PurePosixPath(spec.workdir, path).parts[1] for path in spec.files})
    return "\n".join([
        f"FROM {spec.image or 'python:3.11-slim'}",
        *(f"ENV {name}={json.dumps(value)}" for name, value in spec.env.items()),
        f"WORKDIR {spec.workdir}",
        *(f"COPY files/{top} /{top}" for top in tops),
        *(f"RUN {command}" for command in spec.setup),
        "",
    ])  # fmt: skip


def _solution(script: Any, task: Task, answer_file: str) -> str | None:
    """Returns the oracle's commands as a script; None if it does more than run commands and answer."""
    lines, last = ["set -e"], None
    for said in _said(script(task, random.Random(0))):
        for name, arguments in said.calls or ():
            if name == "shell":
                lines.append(str(arguments["command"]))
            elif name == "answer":
                last = str(next(iter(arguments.values())))
            else:
                return None
        last = said.text or last
    return "\n".join([*lines, f"printf %s {shlex.quote(last or '')} > {answer_file}", ""])


def _said(script: Any) -> Iterator[Say]:
    """Yields the replies of a script that ignores results."""
    try:
        said = next(script)
        while True:
            yield said
            said = script.send([])
    except StopIteration:
        return


def folder_name(id: str) -> str:
    """Returns the name of a task's folder."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", id)
