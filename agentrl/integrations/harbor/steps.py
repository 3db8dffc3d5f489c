"""Steps of a Harbor task (`[[steps]]`): each has an instruction and tests of its own, in one sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.integrations.harbor.config import TaskToml, resolved
from agentrl.integrations.harbor.inside import require_inside
from agentrl.types.errors import TaskError


@dataclass(frozen=True)
class HarborStep:
    """A step.

    Attributes:
        tests: folders of the tests; files of later ones replace those of earlier ones.
        files: folder whose files go to the working folder when the step begins; None if there is none.
        solution: folder with `solve.sh`; None if there is none.
        least: minimum rewards by key, below which no further step follows.
    """

    name: str
    folder: Path
    tests: tuple[Path, ...]
    files: Path | None
    solution: Path | None
    timeout_s: float
    env: Mapping[str, str]
    least: Mapping[str, float]

    @property
    def instruction(self) -> str:
        """Text shown to the agent."""
        return (self.folder / "instruction.md").read_text("utf-8-sig", errors="replace").strip()


def steps_of(folder: Path, config: TaskToml) -> list[HarborStep]:
    """Returns the steps of a task, in order; none for a task of one step.

    Raises:
        TaskError: a file is missing, or leads out of the folder; a variable is not set.
    """
    return [_step(folder, config, number) for number in range(len(config.steps))]


def _step(folder: Path, config: TaskToml, number: int) -> HarborStep:
    told = config.steps[number]
    at = folder / "steps" / told.name
    for name in ("", "instruction.md", "tests", "tests/test.sh", "solution", "solution/solve.sh", "workdir"):
        if (at / name).is_symlink() or (at / name).exists():
            require_inside(folder, at / name)
    tests = tuple(path for path in (folder / "tests", at / "tests") if path.is_dir())
    for file, there in (
        ("instruction.md", (at / "instruction.md").is_file()),
        ("tests/test.sh", any((path / "test.sh").is_file() for path in tests)),
    ):
        if not there:
            raise TaskError(f"step {told.name!r} has no {file}", place=str(at), remedy="add it, or exclude the task")
    solutions = (path for path in (at / "solution", folder / "solution") if (path / "solve.sh").is_file())
    least = told.min_reward
    return HarborStep(
        name=told.name,
        folder=at,
        tests=tests,
        files=at / "workdir" if (at / "workdir").is_dir() else None,
        solution=next(solutions, None),
        timeout_s=told.verifier.timeout_sec or config.verifier.timeout_sec,
        env=resolved(config.verifier.env | told.verifier.env, f"{folder}/task.toml: verifier.env"),
        least={} if least is None else {"reward": least} if isinstance(least, float) else least,
    )
