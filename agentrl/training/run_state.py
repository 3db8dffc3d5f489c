"""State of a training: commits and resumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.recipe import TrainingRecipe
from agentrl.store.checkpoints import POLICIES
from agentrl.store.run_dir import RunDir
from agentrl.training import checkpoint
from agentrl.training.backend import TrainerBackend
from agentrl.training.batch.second_policy import SecondPolicy
from agentrl.training.compute_thread import Compute
from agentrl.training.stages.policy import start_of
from agentrl.training.stages.record import StageRecord
from agentrl.training.stages.stage import Stage
from agentrl.training.stages.stopping import number_in, reached
from agentrl.types.errors import TrainError, nearest


class RunState:
    """A stage's part of the run directory. A checkpoint is written last and commits everything before it.

    Args:
        refers: KL, credit or a second policy needs the policy at the start of the stage.

    Attributes:
        start: the policy of the newest checkpoint (of this stage or the previous one); without a checkpoint, the
            recipe's model.
    """

    def __init__(self, stage: Stage, recipe: TrainingRecipe, run: RunDir, *, refers: bool) -> None:
        self.stage, self._recipe, self._run, self._refers = stage, recipe, run, refers
        self.record = StageRecord(run, stage)
        self.start, self._saved = start_of(self.record, recipe.train.lora, refers=refers)
        self._selves = [selves for each in recipe.policies.values() if (selves := each.selves) is not None]

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._run.path

    async def resume(
        self, trainer: TrainerBackend, second_policies: Mapping[str, SecondPolicy]
    ) -> dict[str, Any] | None:
        """Restores the trainer and those of further policies from the newest checkpoint.

        Returns:
            The `parts` of `commit`, with the iteration; None if the stage starts.
        """
        saved, self._saved = self._saved, None
        if saved is None:
            return None
        await trainer.load(saved.trainer)
        if not self.start.resumes:
            return None
        for name, each in second_policies.items():
            await each.trainer.load(saved.trainer["policies"][name])
        return saved.extra

    def is_over(self, iteration: int) -> bool:
        """Returns True if all iterations of the recipe are done, or the stop rule applies."""
        return iteration >= self._recipe.train.iterations or self.stopped(iteration) is not None

    def stopped(self, iteration: int) -> str | None:
        """The reason why the stop rule ends the stage after an iteration; None if it does not."""
        return reached(self._recipe.train.stop, self.record.lines(iteration))

    def is_due(self, iteration: int) -> bool:
        """Returns True if a checkpoint is due after an iteration, also as a snapshot for self-play, or as what may turn
        out as the best."""
        every = [self._recipe.train.checkpoint_every, *(selves.every for selves in self._selves)]
        if self._recipe.train.keep.best is not None and self._recipe.eval is not None and self._recipe.eval.every:
            every.append(self._recipe.eval.every)
        return any(iteration % each == 0 for each in every) or self.is_over(iteration)

    def _playing(self, iteration: int) -> set[int]:
        """Returns the iterations of the snapshots that episodes may use until the next commit.

        With concurrent rollouts, the snapshots of the previous iteration are used until the update is published.
        """
        first = iteration - 1 if self._recipe.train.max_staleness else iteration
        return {k for selves in self._selves for at in (first, iteration) for k in selves.at(at)}

    def rate(self, iteration: int) -> None:
        """Notes the checkpoint with the highest value of `train.keep.best`, the first of equals; none without
        evaluations.

        Raises:
            TrainError: the evaluations have no such number.
        """
        if (name := self._recipe.train.keep.best) is None:
            return
        lines = [line for line in self.record.lines(iteration) if line["split"] == "eval"]
        values = {self.record.folder(line["iteration"]): number_in(line, name) for line in lines}
        rated = {folder: value for folder, value in values.items() if value is not None}
        if lines and not rated:
            known = [f"eval/{key}" for key, value in lines[-1].items() if isinstance(value, int | float)]
            raise TrainError(
                f"no evaluation has the number {name!r}", place="train.keep.best", remedy=nearest(name, known, "it has")
            )
        kept = [folder for folder in rated if folder.exists() or folder == self.record.folder(iteration)]
        if kept:
            self.record.best[self.stage.name] = max(kept, key=rated.__getitem__).name

    async def commit(
        self,
        iteration: int,
        parts: dict[str, Any],
        trainer: TrainerBackend,
        second_policies: Mapping[str, SecondPolicy],
        compute: Compute,
    ) -> None:
        """Writes a checkpoint.

        Args:
            parts: JSON values of the loop's other parts.
        """
        folder = self.record.folder(iteration)
        self.rate(iteration)
        self.record.selves = {self.record.folder(k).name for k in self._playing(iteration)}
        if self._refers and self.record.pins["reference"] is None:
            self.record.pins["reference"] = folder.name  # the first stage starts from it
        extra = self.record.state(iteration, **parts)
        await compute.call(self._run.flush)
        with checkpoint.writing(folder) as new:
            state = dict(await trainer.save(new))
            state["policies"] = {
                name: dict(await each.trainer.save(new / POLICIES / name)) for name, each in second_policies.items()
            }
            await compute.call(checkpoint.complete, new, folder, state, extra)
