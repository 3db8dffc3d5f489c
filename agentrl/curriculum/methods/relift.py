"""ReLIFT: tasks that no episode solves are learned from demonstrations, between updates."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pydantic import Field

from agentrl.curriculum.parts import CurriculumContext, Filter, Group, Solving
from agentrl.types.errors import RecipeError


class ReliftSettings(Solving):
    """`script`: which of the recipe's scripts demonstrates. `buffer`: tasks that make one supervised step."""

    script: str
    buffer: int = Field(128, gt=0)
    lr: float = Field(1e-6, gt=0)


class Relift(Filter):
    """Collects tasks on which all episodes failed. At `buffer` tasks, the script plays them for one supervised step.
    The authors' reinforcement step is GRPO without clip and with `seq_mean_token_sum`.

    Demonstrations come from a script, not from a data set. Each supervised step has a new AdamW: its first step moves
    every weight by `lr`, independent of the size of its gradient.
    """

    Settings = ReliftSettings
    source = "arXiv:2506.07527; TheRoadQaQ/ReLIFT@eb95454"
    certainty = "A"

    def check(self, scripts: Collection[str]) -> None:
        if self.settings.script not in scripts:
            raise RecipeError(
                f"relift.script is {self.settings.script!r}, but scripts has {sorted(scripts) or 'none'}",
                place="curriculum: relift",
                remedy="name one of them, or add it under 'scripts'",
            )

    def observe(self, groups: Sequence[Group], context: CurriculumContext) -> None:
        failed: list[str] = self.state.setdefault("failed", [])
        for group in groups:
            if group.episodes and not self.settings.solved(group) and group.task.id not in failed:
                failed.append(group.task.id)

    def demonstrate(self) -> tuple[str, float, list[str]] | None:
        failed = self.state.get("failed", [])
        if len(failed) < self.settings.buffer:
            return None
        self.state["failed"] = []
        return self.settings.script, self.settings.lr, failed

    def metrics(self) -> dict[str, float]:
        return {"waiting": float(len(self.state.get("failed", ())))}
