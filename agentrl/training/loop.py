"""The training loop. `assembly.py` wires its parts together; the parts do not know the loop.

                                      groups of episodes             samples
    curriculum --draw--> rollout buffer ----------> batch builder ----------> trainer --weights--> publisher
                         (staleness       ^         (select, credit,         (update)                 |
                            policy)       |             refine)                                       |
                             |            |                                                           v
                           specs     run directory <--store-- scheduler <---------replies--------- engine(s)
                             |                                    ^
                             +------------------------------------+

    in addition: evaluator (blocking, or in the background), imitation (demonstrations that filters request), run state
    (restore, commit, prune), reporter (terminal, trackers)

With `max_staleness: 0` training is synchronous: the groups of an iteration begin after the previous update, and all of
them train in the next one. With `stream: true` the gradients of groups that have ended are computed while others are
played; the step waits for all of them. With a larger `max_staleness`, rollouts continue while the trainer computes, at
most that many updates ahead.

Each step may be repeated after a kill: episodes, credit and metrics have keys, and the checkpoint is the commit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from agentrl.config.recipe import TrainingRecipe
from agentrl.curriculum import Curriculum
from agentrl.rollouts.summary import summary
from agentrl.store.checkpoints import reading
from agentrl.training.backend import TrainerBackend
from agentrl.training.batch.builder import BatchBuilder, TrainingBatch
from agentrl.training.batch.second_policy import SecondPolicy
from agentrl.training.compute_thread import Compute
from agentrl.training.evaluator import Evaluator
from agentrl.training.imitation import Imitation
from agentrl.training.publisher import WeightPublisher
from agentrl.training.rollout_buffer import GroupBuffer, RolloutBatch
from agentrl.training.run_state import RunState
from agentrl.training.staleness import staleness_metrics
from agentrl.types.errors import TrainError
from agentrl.types.reporter import Reporter
from agentrl.types.seeds import derive_seed


@dataclass
class TrainingLoop:
    """A stage of reinforcement learning that is ready for its next iteration.

    Attributes:
        compute: where this process computes batches and checkpoints, and the local trainer its steps.
        second_policies: the further policies that train, by name. They are updated with the main one.
        iteration: updates that are done, which is also the version of the policy.
    """

    recipe: TrainingRecipe
    reporter: Reporter
    compute: Compute
    curriculum: Curriculum
    buffer: GroupBuffer
    batches: BatchBuilder
    trainer: TrainerBackend
    imitation: Imitation
    publisher: WeightPublisher
    evaluator: Evaluator
    state: RunState
    second_policies: dict[str, SecondPolicy] = field(default_factory=dict)
    iteration: int = 0
    _streamed: float = field(default=0.0, init=False)

    async def run(self) -> None:
        """Trains to the end of the stage, from its current iteration.

        Raises:
            TrainError: the loss is not finite, or an iteration has no scored episode.
        """
        await self.evaluator.catch_up(self.iteration)
        while True:
            await self.evaluator.run_if_due(self.iteration)
            if self.state.is_over(self.iteration):
                break
            await self.step()
        if self.recipe.train.keep.best is not None:
            await self.evaluator.finish()
        if not self.state.record.folder(self.iteration).exists() or self.recipe.train.keep.best is not None:
            await self.commit()  # an evaluation ended the stage, or may have found its best policy
        if (why := self.state.stopped(self.iteration)) is not None:
            self.reporter.note(f"stage {self.state.stage.name} ends after {self.iteration} iterations: {why}")
        await self.evaluator.finish()

    async def step(self) -> None:
        """One iteration."""
        started = time.perf_counter()
        self._streamed = 0.0
        streams = self.recipe.train.stream
        rollouts = await self.buffer.next_batch(self.iteration, self._accumulate if streams else None)
        self._require_scored(rollouts)
        await self.publisher.rest()
        rolled = time.perf_counter()
        batch, updated = await self._learn(rollouts)
        imitated = await self.imitation.step(self.iteration)
        line = {
            "iteration": self.iteration + 1,
            "split": "train",
            **summary(rollouts.episodes),
            **self.batches.truncation.metrics(rollouts.episodes),
            **batch.metrics,
            **imitated,
            **updated,
            **self.buffer.metrics(rollouts),
            **self.publisher.metrics,  # of the weights that sampled the training data
            **({"streamed_s": self._streamed} if streams else {}),
            "rollout_s": rolled - started,
            "train_s": time.perf_counter() - rolled,
        }
        self.iteration, line = self.iteration + 1, self.state.record.add_line(line)
        if self.state.is_due(self.iteration) or self.evaluator.keeps(self.iteration):
            await self.commit()
        await self.publisher.publish(self.iteration)
        self.reporter.metrics(line)

    async def commit(self) -> None:
        """Writes a checkpoint. Work before it is not repeated after a kill."""
        of_credit = self.batches.state_dict()
        parts = {"curriculum": self.curriculum.state_dict(), "credit": of_credit, **self.buffer.state_dict()}
        await self.state.commit(self.iteration, parts, self.trainer, self.second_policies, self.compute)
        if not self.evaluator.busy:
            self.state.rate(self.iteration)  # an evaluation may have ended while the checkpoint was written
            await self.compute.call(self.state.record.prune)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `commit` wrote with the weights."""
        self.iteration = int(state["iteration"])
        self.curriculum.load_state_dict(state["curriculum"])
        of_credit = state.get("credit", {})  # checkpoints of older versions have none
        folder = self.state.record.folder(self.iteration)
        reading(folder, lambda: self.batches.load_state_dict(of_credit, self.iteration))
        self.buffer.load_state_dict(state, self.iteration)

    async def _learn(self, rollouts: RolloutBatch) -> tuple[TrainingBatch, dict[str, Any]]:
        """The batch, and the metrics of its update. Nothing trains if every episode was filtered out."""
        batch = await self.batches.build(rollouts.groups, self.iteration)
        found = {"trained_rows": float(len(batch.samples)), **staleness_metrics(batch.samples, self.iteration)}
        seed = derive_seed(self.recipe.seed, "update", self.iteration)
        progress = self.iteration / self.recipe.train.iterations
        policies_learn = self.iteration >= self.recipe.train.warmup
        if policies_learn:
            found |= await self.trainer.learn(batch.samples, batch.groups, seed=seed, progress=progress)
            if batch.samples and self.recipe.train.record_tokens:
                self.state.record.add_tokens(self.iteration + 1, self.trainer.recorded())
        for name, each in self.second_policies.items() if policies_learn else ():
            found |= await each.update(batch.beside[name], seed, progress)
        batch.metrics.update(await self.compute.call(self.curriculum.observe, batch.groups, self.iteration))
        return batch, found

    async def _accumulate(self, rollouts: RolloutBatch) -> None:
        """Adds the gradient of groups that have ended, while others are played."""
        began = time.perf_counter()
        for group in rollouts.groups:
            if samples := await self.batches.early(group, self.iteration):
                await self.trainer.accumulate(samples, progress=self.iteration / self.recipe.train.iterations)
        self._streamed += time.perf_counter() - began

    def _require_scored(self, rollouts: RolloutBatch) -> None:
        if not rollouts.groups:
            raise TrainError(
                f"iteration {self.iteration}: no task was drawn",
                place="curriculum",
                remedy="check the sampler of the curriculum: it returned no task",
            )
        if not any(group.episodes for group in rollouts.groups) and not any(e.scored for e in rollouts.episodes):
            raise TrainError(
                f"iteration {self.iteration}: none of {len(rollouts.episodes)} episodes could be scored",
                remedy=f"agentrl show {self.state.path} lists the failures",
            )
