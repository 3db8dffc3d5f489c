"""The batch builder: turns groups of episodes into training samples.

groups -> select -> credit -> refine -> samples. The samples of an episode are built once: critic, reward model,
reference policy and trainer share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.config.recipe import TrainSection
from agentrl.curriculum import CreditedEpisode, Curriculum, Group
from agentrl.estimators.registry import CreditAssigner, EpisodeCredit
from agentrl.store.run_dir import RunDir
from agentrl.training.batch.credit_giver import CreditGiver, Samples
from agentrl.training.batch.second_policy_batch import SecondPolicyBatch, SecondPolicyBuilder
from agentrl.training.batch.truncation import Truncation
from agentrl.training.batch.views import together
from agentrl.training.inputs import teaches
from agentrl.types.episode import Episode
from agentrl.types.figures.of_episodes import earned
from agentrl.types.figures.sums import vary
from agentrl.types.reporter import Reporter
from agentrl.types.sample import TrainingSample, mask_turns, untrained_samples, with_advantages


@dataclass(frozen=True)
class TrainingBatch:
    """The data of an update.

    Attributes:
        groups: all groups of the rollout, with the size of their advantages: the curriculum observes them.
        beside: samples of the auxiliary trained policies, by name.
    """

    samples: list[TrainingSample]
    groups: list[Group]
    metrics: dict[str, Any]
    beside: dict[str, list[TrainingSample]] = field(default_factory=dict)


class BatchBuilder:
    """Builds the batches of a training, where its trainer computes.

    Attributes:
        truncation: the rules for episodes that a limit ended.
    """

    def __init__(
        self,
        settings: TrainSection,
        run: RunDir,
        reporter: Reporter,
        curriculum: Curriculum,
        credit: CreditAssigner,
        giver: CreditGiver,
        beside: Mapping[str, SecondPolicyBuilder] | None = None,
    ) -> None:
        self._settings, self._run, self._reporter = settings, run, reporter
        self._curriculum, self._credit, self._beside = curriculum, credit, beside or {}
        self._giver, self._told_of_states = giver, False
        self.truncation = Truncation.of_settings(settings)

    async def build(self, groups: list[Group], iteration: int) -> TrainingBatch:
        """The batch of an iteration. Credit is stored with the episodes."""
        chosen, samples = await self._giver.call(self._selected, groups, iteration)
        credits, metrics = await self._giver.give(chosen, samples, iteration)
        beside = {name: await each.build(chosen, iteration) for name, each in self._beside.items()}
        training = await self._giver.call(self._credited, groups, chosen, samples, credits, beside, iteration)
        if left := _left_out(groups, chosen):
            metrics = {**metrics, "left_out_groups": left}
        self._note_if_nothing_teaches(training, groups, metrics, iteration)
        self._note_if_no_state_is_shared(metrics, iteration)
        of_others = {name: each.samples for name, each in beside.items()}
        told = {key: value for each in beside.values() for key, value in each.metrics.items()}
        return TrainingBatch(training, _with_advantages(groups, credits), {**metrics, **told}, of_others)

    async def early(self, group: Group, iteration: int) -> list[TrainingSample]:
        """The samples of a group that has ended, before the others have: those of `build`, if nothing in its credit
        depends on them. Stores nothing."""
        samples = {episode.id: untrained_samples(episode) for episode in group.episodes}
        credits, _ = await self._giver.give(group.episodes, samples, iteration)
        return await self._giver.call(self._refined, group.episodes, samples, credits, iteration)

    def state_dict(self) -> dict[str, Any]:
        """Returns the memory of each policy's credit between updates, as JSON values."""
        return {name: giver.state_dict() for name, giver in self._givers.items()}

    def load_state_dict(self, state: dict[str, Any], iteration: int) -> None:
        """Restores a result of `state_dict`, before an iteration; a policy that it lacks begins without."""
        for name, giver in self._givers.items():
            giver.load_state_dict(state.get(name, {}), iteration)

    @property
    def _givers(self) -> dict[str, CreditGiver]:
        """By policy; "" is the main one."""
        return {"": self._giver, **{name: each.giver for name, each in self._beside.items()}}

    def _selected(self, groups: list[Group], iteration: int) -> tuple[list[Episode], Samples]:
        selected = self._curriculum.select(groups, self._settings.groups, iteration)
        chosen = [episode for group in selected for episode in group.episodes]
        return chosen, {episode.id: untrained_samples(episode) for episode in chosen}

    def _credited(
        self,
        groups: list[Group],
        chosen: list[Episode],
        samples: Samples,
        credits: list[EpisodeCredit],
        beside: Mapping[str, SecondPolicyBatch],
        iteration: int,
    ) -> list[TrainingSample]:
        """Stores the credit of all policies. Returns the samples of the main one that train."""
        others = [credit for each in beside.values() for credit in each.credits]
        self._store(groups, together([*credits, *others]), iteration)
        return self._refined(chosen, samples, credits, iteration)

    def _refined(
        self, chosen: list[Episode], samples: Samples, credits: list[EpisodeCredit], iteration: int
    ) -> list[TrainingSample]:
        """The samples that train, with their advantages."""
        credited = [
            CreditedEpisode(episode, credit)
            for episode, credit in zip(chosen, credits, strict=True)
            if self.truncation.of(episode) != "mask"
        ]
        refined = self._curriculum.refine(credited, iteration)
        return [sample for each in refined for sample in _samples_of(each, samples)]

    def _store(self, groups: list[Group], credits: Iterable[EpisodeCredit], iteration: int) -> None:
        played = {episode.id for group in groups for episode in group.episodes}
        for each in credits:
            if each.episode_id in played:  # an episode from an earlier iteration keeps its stored credit
                self._run.add_credit(
                    each.episode_id, each.estimator, each.turn_advantages, each.parts, iteration=iteration
                )

    def _note_if_nothing_teaches(
        self, samples: list[TrainingSample], groups: list[Group], metrics: Mapping[str, Any], iteration: int
    ) -> None:
        if teaches(samples):
            return
        why = "every advantage is 0" if samples else "no episode is left to train on"
        if self._credit.passes_over(episode for group in groups for episode in group.episodes):
            why += f", and {self._credit.estimator.name} does not read the turn rewards"
        if metrics.get("single_step_groups") == 1:
            why += ", and no two turns met the same state: state_key() of the tools or the agent tells too many apart"
        told = _groups_in_words(groups)
        self._reporter.note(f"iteration {iteration + 1}: nothing to learn from, {why} ({told})")

    def _note_if_no_state_is_shared(self, metrics: Mapping[str, Any], iteration: int) -> None:
        """Tells once in a process that credit by state compares nothing, in this batch or with earlier ones."""
        if self._told_of_states or metrics.get("shared_states") != 0 or metrics.get("known_states"):
            return
        if "state" in self._credit.needs:
            self._told_of_states = True
            self._reporter.note(
                f"iteration {iteration + 1}: no two episodes met the same state, and {self._credit.estimator.name} "
                "compares turns at equal states -> a coarser state_key(), or agent.state: tools (docs/states.md)"
            )


def _samples_of(each: CreditedEpisode, samples: Samples) -> list[TrainingSample]:
    """Returns the samples of an episode with its advantages, without those that turn masks leave empty."""
    laid_out = samples.get(each.episode.id)
    if laid_out is None:  # a filter added it from an earlier iteration
        laid_out = untrained_samples(each.episode)
    credit = each.credit
    whole = with_advantages(laid_out, credit.turn_advantages, credit.token_advantages, credit.clip_scales)
    masked = [mask_turns(sample, each.masked_turns) for sample in whole]
    return [sample for sample in masked if sample.loss_mask.any()]


def _with_advantages(groups: list[Group], credits: Iterable[EpisodeCredit]) -> list[Group]:
    """The groups with the mean |advantage| of their credited episodes."""
    size = {
        credit.episode_id: sum(map(abs, credit.turn_advantages)) / max(len(credit.turn_advantages), 1)
        for credit in credits
    }
    return [
        replace(group, mean_abs_advantages=[size[e.id] for e in group.episodes if e.id in size]) for group in groups
    ]


def _left_out(groups: list[Group], chosen: Iterable[Episode]) -> list[str]:
    """Returns the ids of the groups of which no episode is credited: a filter of the curriculum left them out."""
    credited = {episode.id for episode in chosen}
    return [group.id for group in groups if not any(episode.id in credited for episode in group.episodes)]


def _groups_in_words(groups: list[Group]) -> str:
    sizes = [len(group.episodes) for group in groups]
    flat = sum(not vary(earned(episode) or 0.0 for episode in group.episodes) for group in groups)
    of = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{max(sizes)}"
    return f"{len(groups)} groups of {of} scored episodes, {flat} without a difference in reward"
