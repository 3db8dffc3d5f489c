"""`task.toml` of a Harbor task folder: its keys, and the unsupported ones."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentrl.integrations.harbor.compose import beyond_one_container
from agentrl.integrations.harbor.inside import require_own_files
from agentrl.types.errors import TaskError, nearest

_NetworkMode = Literal["public", "no-network", "allowlist"]


_MISSPELT = 0.85
"""Minimum similarity of an unknown key to count as misspelt. Harbor's keys that are not read here are below it."""


class _Table(BaseModel):
    """TOML table. Unknown keys are ignored, as by Harbor, unless they resemble a known one."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _spelling(cls, value: Any) -> Any:
        known = cls.model_fields
        for key in value if isinstance(value, dict) else ():
            if key not in known and difflib.get_close_matches(key, known, 1, _MISSPELT):
                raise TaskError(f"unknown key {key!r}", remedy=nearest(key, known, "read here"))
        return value


class Phase(_Table):
    """Network settings of `[environment]`, `[agent]` and `[verifier]`."""

    network_mode: _NetworkMode | None = None
    allowed_hosts: tuple[str, ...] = ()


class EnvironmentTable(Phase):
    """`[environment]` and `[verifier.environment]`: settings of the sandbox."""

    docker_image: str | None = None
    cpus: float | None = Field(None, gt=0)
    memory_mb: int | None = Field(None, gt=0)
    memory: str | None = None
    gpus: int = 0
    allow_internet: bool | None = None
    env: dict[str, str] = {}
    workdir: str | None = None
    os: str = "linux"
    mcp_servers: tuple[Any, ...] = ()
    build_timeout_sec: float = Field(600, gt=0)
    healthcheck: dict[str, Any] | None = None

    @property
    def memory_in_mb(self) -> int | None:
        """Memory from `memory_mb`, or from the older `memory = "2G"`."""
        if self.memory_mb is not None or self.memory is None:
            return self.memory_mb
        number, unit = re.match(r"\s*([\d.]*)\s*([KMGT]?)", self.memory.upper()).groups()  # type: ignore[union-attr]
        return int(float(number or 0) * {"K": 1 / 1024, "M": 1, "": 1 / 2**20, "G": 1024, "T": 2**20}[unit]) or None


class CollectHook(_Table):
    """`[[verifier.collect]]`: command in the agent's sandbox before artifacts are copied."""

    command: str
    timeout_sec: float = Field(600, gt=0)
    service: str | None = None


class VerifierTable(Phase):
    """`[verifier]`."""

    timeout_sec: float = Field(600, gt=0)
    env: dict[str, str] = {}
    environment_mode: Literal["shared", "separate"] = "shared"
    environment: EnvironmentTable | None = None
    collect: tuple[CollectHook, ...] = ()


class SolutionTable(_Table):
    """`[solution]`."""

    env: dict[str, str] = {}


class Artifact(_Table):
    """Entry of `artifacts`: a path copied to the same place in a separate verifier's sandbox."""

    source: str
    service: str | None = None


class StepVerifier(_Table):
    """`[steps.verifier]`: what it does not set is the task's."""

    timeout_sec: float | None = Field(None, gt=0)
    env: dict[str, str] = {}
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: tuple[Any, ...] = ()


class StepTable(_Table):
    """Entry of `[[steps]]`."""

    name: str = Field(pattern=r"^[\w.-]+$")
    min_reward: float | dict[str, float] | None = None
    verifier: StepVerifier = StepVerifier()
    artifacts: tuple[Any, ...] = ()
    healthcheck: dict[str, Any] | None = None

    @field_validator("name")
    @classmethod
    def _folder(cls, value: str) -> str:
        if value in (".", ".."):
            raise ValueError("is no name of a folder")
        return value


class TaskToml(_Table):
    """Whole `task.toml`."""

    environment: EnvironmentTable = EnvironmentTable()
    agent: Phase = Phase()
    verifier: VerifierTable = VerifierTable()
    solution: SolutionTable = SolutionTable()
    artifacts: tuple[Artifact, ...] = ()
    steps: tuple[StepTable, ...] = ()
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"

    @field_validator("artifacts", mode="before")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        listed = value if isinstance(value, list) else [value]
        return [{"source": each} if isinstance(each, str) else each for each in listed]


def read_task_toml(folder: Path) -> TaskToml:
    """Reads `task.toml` of a task folder.

    Raises:
        TaskError: the file is not TOML, a value is invalid, or a key seems misspelt; names file and key. Or a file of
            the folder leads out of it.
    """
    require_own_files(folder)
    path = folder / "task.toml"
    try:
        return TaskToml.model_validate(tomllib.loads(path.read_text("utf-8-sig")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"not valid TOML: {error}", place=str(path), remedy=_REMEDY) from None
    except TaskError as error:
        raise TaskError(error.message, place=str(path), remedy=error.remedy) from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise TaskError(f"{key}: {first['msg']}, not {first['input']!r:.60}", place=str(path), remedy=_REMEDY) from None


def unsupported(folder: Path, config: TaskToml) -> str | None:
    """Returns the first unsupported feature of a task; None if all are supported."""
    if (beyond := beyond_one_container(folder)) is not None:
        return beyond
    environment, verifier = config.environment, config.verifier
    other = verifier.environment
    asked = {
        "a folder steps/ without [[steps]]": not config.steps and (folder / "steps").is_dir(),
        "several steps ([[steps]]) with a verifier apart, artifacts or a health check": bool(config.steps)
        and (
            "separate" in (verifier.environment_mode, *(each.verifier.environment_mode for each in config.steps))
            or any(each.healthcheck or each.artifacts or each.verifier.collect for each in config.steps)
        ),
        "MCP servers (environment.mcp_servers)": bool(environment.mcp_servers),
        "GPUs (environment.gpus)": environment.gpus > 0,
        "Windows (environment.os)": environment.os != "linux",
        "a health check (environment.healthcheck)": environment.healthcheck is not None,
        "a verifier with an image of its own (verifier.environment)": other is not None
        and other.docker_image != environment.docker_image,
        "other services (service)": any(each.service not in (None, "main") for each in config.artifacts)
        or any(hook.service not in (None, "main") for hook in verifier.collect),
    }
    return next((what for what, wanted in asked.items() if wanted), None)


def network_of(config: TaskToml) -> str | dict[str, list[str]]:
    """Returns the network of the sandbox, in the form of `sandbox.spec.network`.

    Raises:
        ValueError: the verifier needs another network than the agent but shares its sandbox.
    """
    agent = _network(config.agent, config.environment)
    verifier = _network(config.verifier, config.environment)
    if verifier != agent:
        raise ValueError(f"the agent's network is {agent}, the verifier's {verifier}: a sandbox has one network")
    return agent


def _network(phase: Phase, environment: EnvironmentTable) -> str | dict[str, list[str]]:
    said = phase if phase.network_mode is not None else environment
    if said.network_mode is None:
        return "none" if environment.allow_internet is False else "public"
    if said.network_mode == "allowlist" and said.allowed_hosts:
        return {"allow": list(said.allowed_hosts)}
    return "public" if said.network_mode == "public" else "none"


def resolved(env: dict[str, str], place: str) -> dict[str, str]:
    """Fills `${VAR}` and `${VAR:-default}` from this process's environment.

    Raises:
        TaskError: a variable is not set and has no default.
    """

    def fill(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"], match["default"])
        if found is None:
            raise TaskError(
                f"the variable {match['name']} is not set", place=place, remedy="set it, or exclude the task"
            )
        return found

    return {name: re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}", fill, value) for name, value in env.items()}


_REMEDY = "mend the file, or leave the task out (tasks.exclude)"
