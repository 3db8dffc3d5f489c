"""The certificate of an environment: what was found, and of which recipe and code that is true."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from agentrl.api.certify.findings import Finding
from agentrl.api.run_dirs import code_beside
from agentrl.config.recipe import Recipe
from agentrl.types.errors import StoreError

_SECTIONS = {"tasks", "agent", "tools", "sandbox", "rewards", "gate", "reward_of"}


@dataclass(frozen=True)
class Certificate:
    """What `agentrl env check` found.

    Attributes:
        certified: whether no check failed.
        tasks: number of tasks that the oracle played.
        threshold: the reward, or value of `success`, from which an episode counts as a success.
        environment: hash of the recipe's sections that make the environment, and of the Python files beside it.
        version: of agentrl.
    """

    recipe: str
    certified: bool
    tasks: int
    threshold: float
    date: str
    version: str
    environment: str
    findings: list[Finding]

    def store(self, folder: Path) -> Path:
        """Writes `NAME.certificate.json`.

        Raises:
            StoreError: the folder cannot be written to.
        """
        path = path_of(self.recipe, folder)
        try:
            path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        except OSError as error:
            raise StoreError(
                f"cannot be written: {error.strerror}", place=str(path), remedy="copy the recipe"
            ) from error
        return path


def path_of(name: str, folder: Path) -> Path:
    """The file of the certificate of the recipe `name`."""
    return folder / f"{name}.certificate.json"


def environment_of(recipe: Recipe) -> str:
    """A hash of what a certificate is about."""
    described = {"recipe": json.loads(recipe.model_dump_json(include=_SECTIONS)), "code": code_beside(recipe.base)}
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]


def told(recipe: Recipe) -> str | None:
    """What the certificate beside a recipe says, in one line; None if there is none.

    Raises:
        StoreError: the file is not a certificate.
    """
    path = path_of(recipe.name, recipe.base)
    if not path.is_file():
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Certificate)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"is not a certificate: {error}", place=str(path), remedy="agentrl env check --store"
        ) from error
    verdict = "certified" if found.certified else "not certified"
    same = found.environment == environment_of(recipe)
    return f"{verdict} on {found.tasks} tasks, {found.date[:10]}{'' if same else ', before the environment changed'}"
