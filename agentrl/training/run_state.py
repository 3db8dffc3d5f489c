"""State of a training: commits and resumes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.config.recipe import TrainingRecipe
from agentrl.models.load import LoadedModel
from agentrl.store.run_dir import RunDir
from agentrl.training import checkpoint
from agentrl.training.batch.companion import Companion
from agentrl.training.batch.model_columns import ModelColumns
from agentrl.training.stages.policy import load_policy, pins_of, starting_policy
from agentrl.training.stages.record import StageRecord
from agentrl.training.stages.stage import Stage, is_of
from agentrl.training.stages.stopping import reached
from agentrl.training.trainer import Trainer


class RunState:
    """A stage's part of the run directory. A checkpoint is written last and commits everything before it.

    Args:
        refers: KL, credit or a second policy needs the policy at the start of the stage.

    Attributes:
        loaded: the model with the weights of the newest checkpoint (of this stage or the previous one); without a
            checkpoint, the recipe's model.
    """

    def __init__(self, stage: Stage, recipe: TrainingRecipe, run: RunDir, *, refers: bool) -> None:
        self.stage, self._recipe, self._run, self._refers = stage, recipe, run, refers
        self.record = StageRecord(run, stage)
        self._start = starting_policy(recipe, recipe.train.lora, self.record.checkpoints)
        newest = self._start.newest
        self._saved = None if newest is None else checkpoint.load_state(newest)
        own = self._saved.extra if self._saved is not None and is_of(stage, self._saved.extra) else None
        self.record.pins = pins_of(self._start, own, refers=refers)
        self.loaded: LoadedModel = self._start.loaded
        self._selves = [selves for each in recipe.policies.values() if (selves := each.selves) is not None]
        self._old_reference = run.path / "reference"  # of runs recorded before there were stages

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._run.path

    def reference(self) -> Any | None:
        """The policy at the start of the stage; None if nothing needs it."""
        if not self._refers:
            return None
        if self._old_reference.exists():
            return load_policy(self._recipe, self._old_reference)
        name = self.record.pins["reference"]
        if name is None:
            return copy.deepcopy(self.loaded.model)
        return load_policy(self._recipe, self.record.checkpoints / name)

    def resume(
        self, trainer: Trainer, columns: ModelColumns, companions: Mapping[str, Companion]
    ) -> dict[str, Any] | None:
        """Restores the trainer, critics, reward model and further trained policies from the newest checkpoint.

        Returns:
            The `parts` of `commit`, with the iteration; None if the stage starts.
        """
        saved, self._saved = self._saved, None
        if not self._start.resume(trainer, saved, self.stage) or saved is None:
            return None
        columns.load_state_dict(saved.trainer.get("critics", {}))
        for name, each in companions.items():
            each.load_state_dict(saved.trainer["policies"][name])
        return saved.extra

    def is_over(self, iteration: int) -> bool:
        """Returns True if all iterations of the recipe are done, or the stop rule applies."""
        return iteration >= self._recipe.train.iterations or self.stopped(iteration) is not None

    def stopped(self, iteration: int) -> str | None:
        """The reason why the stop rule ends the stage after an iteration; None if it does not."""
        return reached(self._recipe.train.stop, self.record.lines(iteration))

    def is_due(self, iteration: int) -> bool:
        """Returns True if a checkpoint is due after an iteration, also as a snapshot for self-play."""
        every = [self._recipe.train.checkpoint_every, *(selves.every for selves in self._selves)]
        return any(iteration % each == 0 for each in every) or self.is_over(iteration)

    def is_kept(self, iteration: int) -> bool:
        """Returns True if the checkpoint of an iteration exists."""
        return self.record.folder(iteration).exists()

    def _playing(self, iteration: int) -> set[int]:
        """Returns the iterations of the snapshots that episodes may use until the next commit.

        With concurrent rollouts, the snapshots of the previous iteration are used until the update is published.
        """
        first = iteration - 1 if self._recipe.train.max_staleness else iteration
        return {k for selves in self._selves for at in (first, iteration) for k in selves.at(at)}

    def commit(
        self,
        iteration: int,
        parts: dict[str, Any],
        trainer: Trainer,
        columns: ModelColumns,
        companions: Mapping[str, Companion],
    ) -> None:
        """Writes a checkpoint.

        Args:
            parts: JSON values of the loop's other parts.
            companions: the further trained policies, by name.
        """
        self._run.flush()
        folder = self.record.folder(iteration)
        self.record.selves = {self.record.folder(k).name for k in self._playing(iteration)}
        if self._refers and self.record.pins["reference"] is None and not self._old_reference.exists():
            self.record.pins["reference"] = folder.name  # the first stage starts from it
        checkpoint.save(
            folder,
            self.loaded.model,
            self.loaded.save_described,
            {
                **trainer.state_dict(),
                "critics": columns.state_dict(),
                "policies": {name: each.state_dict() for name, each in companions.items()},
            },
            self.record.state(iteration, **parts),
            weights=trainer.weights(device="cpu"),
            lora=self._recipe.train.lora,
            beside={name: each.saved() for name, each in companions.items()},
        )
