"""Pairs of keys of which each is valid, and that make no sense together. Each is refused with both keys named."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from agentrl.config.stages import PreferenceStage, SftStage
from agentrl.curriculum.methods.budget import ExpertBudget
from agentrl.curriculum.methods.dart import DartRollouts, DartSuccesses
from agentrl.curriculum.methods.hints import Seele
from agentrl.curriculum.methods.horizon import ScalingInter
from agentrl.curriculum.methods.noise import ZeroSearch
from agentrl.curriculum.methods.recap import Recap
from agentrl.curriculum.methods.sources import SourceSampler
from agentrl.curriculum.methods.temperature import EntropyTarget
from agentrl.curriculum.methods.zero_variance import ZeroVariance
from agentrl.curriculum.parts import Filter, Part, data_of
from agentrl.preflight.code import in_code
from agentrl.training.stages.data import preference_loss
from agentrl.training.stages.plan import RlPlan, StagePlan
from agentrl.types.errors import RecipeError

OF_OUTCOMES = ("pacs", "nft")
"""Losses that compare the outcomes of a group, and read no credit."""
OF_FAILURES = ("nsr", "w_reinforce")
"""Estimators that learn from a group in which all episodes failed."""


def check_pairs(plan: RlPlan) -> None:
    """Checks the sections of a stage of reinforcement learning against each other.

    Raises:
        RecipeError: two of them make no sense together.
    """
    parts = plan.parts.make_curriculum()
    for rule in RULES:
        for error in rule(plan, parts):
            raise error


def check_stages(stages: Sequence[StagePlan]) -> None:
    """Checks the stages of a training against each other.

    Raises:
        RecipeError: a stage takes something from another one that it does not give.
    """
    for plan in stages:
        for error in (
            *_of_preferences(plan, stages),
            *_of_collections(plan, stages),
            *_of_memories(plan, stages),
            *_of_the_best(plan, stages),
        ):
            raise error


def _refused(first: str, second: str, why: str, remedy: str) -> RecipeError:
    return RecipeError(f"{first} and {second} make no sense together: {why}", place=first, remedy=remedy)


def _of_lone_episodes(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    """A group of one episode, which no fork joins, has no members to compare."""
    if not _alone(plan):
        return
    several = "train.group_size=8"
    for index, part in enumerate(parts):
        if isinstance(part, ZeroVariance):
            why = f"{part.name} drops groups whose episodes are equal, and those of one episode are"
            yield _refused(f"curriculum.{index}", "train.group_size", why, f"{several}, or no {part.name}")
    for component in plan.parts.rewards.of_group:
        if not component.weight and component.name not in plan.parts.credit.needs:
            continue
        why = f"{component.name} compares the episodes of a group, and each has one"
        yield _refused(f"rewards.{component.name}", "train.group_size", why, f"{several}, or another reward")
    if plan.loss.name in OF_OUTCOMES:
        why = f"{plan.loss.name} compares the episodes of a group, and each has one"
        yield _refused("train.loss", "train.group_size", why, f"{several}, or train.loss=ppo_clip")


def _of_unread_credit(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    estimator = plan.parts.credit.estimator
    if plan.loss.name in OF_OUTCOMES and estimator.granularity != "trajectory":
        why = f"{plan.loss.name} reads outcomes of episodes, and what {estimator.name} gives to each turn is lost"
        yield _refused("train.loss", "credit", why, "train.loss=ppo_clip, or credit=grpo")


def _of_dropped_failures(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    name = plan.parts.credit.estimator.name
    for index, part in enumerate(parts):
        if name in OF_FAILURES and isinstance(part, ZeroVariance):
            why = f"{name} learns from groups in which all episodes failed, and {part.name} drops them"
            yield _refused(f"curriculum.{index}", "credit", why, f"credit=grpo, or a recipe without {part.name}")


def _of_cancelled_corrections(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    """A correction for a noisy verifier moves and stretches all rewards alike, which a baseline of the group undoes."""
    credit, weighed = plan.parts.credit, [each for each in plan.parts.rewards.components if each.weight]
    if len(weighed) != 1 or not credit.needs_members:
        return
    (component,), divided = weighed, getattr(credit.settings, "std", "none") != "none"
    for step in component.steps:
        if step.forward is not None or (step.backward is not None and divided):
            name = "forward" if step.forward is not None else "backward"
            why = f"{name} changes all rewards alike, and {credit.estimator.name} takes the group's mean off again"
            remedy = "an estimator without a baseline, or without the correction"
            yield _refused(f"rewards.{component.name}.then", "credit", why, remedy)


def _of_the_temperature(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    own = plan.recipe.sampling
    for index, part in enumerate(parts):
        if isinstance(part, EntropyTarget) and "temperature" in own.model_fields_set:
            start = part.settings.start
            if start != own.temperature:
                why = f"{part.name} sets the temperature, from {start:g} on, and {own.temperature:g} is never used"
                remedy = f"curriculum.{index}.start={own.temperature:g}, or no sampling.temperature"
                yield _refused(f"curriculum.{index}.start", "sampling.temperature", why, remedy)


def _of_the_horizon(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    limits = [
        (index, part)
        for index, part in enumerate(parts)
        if isinstance(part, (DartRollouts, ExpertBudget, ScalingInter))
    ]
    for (first, before), (second, after) in itertools.pairwise(limits):
        if isinstance(after, ScalingInter):
            why = f"{after.name} replaces the limit of turns that {before.name} has set"
            remedy = f"list {after.name} first" if isinstance(before, DartRollouts) else "keep one of them"
            yield _refused(f"curriculum.{first}", f"curriculum.{second}", why, remedy)


def _of_hints(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    for index, part in enumerate(parts):
        if not isinstance(part, Seele):
            continue
        bare = next((task.id for task in plan.parts.tasks.tasks if not task.instruction), None)
        if bare is not None:
            why = f"{part.name} writes its hint behind the instruction, and task {bare!r} has none: its tools open it"
            yield _refused(f"curriculum.{index}", "tasks", why, "tasks with an instruction")


def _of_one_source(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    for index, part in enumerate(parts):
        if isinstance(part, (SourceSampler, Recap)):
            key = part.settings.key
            found = {str(data_of(task, key, part.name)) for task in plan.parts.tasks.tasks}
            if len(found) == 1:
                why = f"{part.name} weighs sources against each other, and all tasks have the {key} {found.pop()!r}"
                yield _refused(f"curriculum.{index}.key", "tasks", why, "another key, or tasks of several sources")


def _of_noise(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    for index, part in enumerate(parts):
        if isinstance(part, ZeroSearch) and not in_code(part.settings.key, plan.parts):
            why = f"{part.name} sets the noise of a tool, and the code of no tool contains {part.settings.key!r}"
            yield _refused(f"curriculum.{index}.key", "tools", why, "the tool search, or the key that your tool reads")


def _of_streamed_groups(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    """The samples of a group must not depend on other groups, whose episodes may still be played."""
    if not plan.recipe.train.stream:
        return
    for index, part in enumerate(parts):
        if isinstance(part, Filter):
            why = f"{part.name} chooses among all groups, and a streamed group trains before the others are there"
            yield _refused(f"curriculum.{index}", "train.stream", why, "train.stream=false")
    if plan.parts.credit.memory() is not None:
        why = f"{plan.parts.credit.estimator.name} remembers values, which change with every group"
        yield _refused("credit", "train.stream", why, "train.stream=false, or credit without decay")
    for name, each in plan.recipe.policies.items():
        if each.train:
            why = "a second policy trains on all groups together"
            yield _refused(f"policies.{name}", "train.stream", why, "train.stream=false")


def _of_repeated_episodes(plan: RlPlan, parts: Sequence[Part]) -> Iterator[RecipeError]:
    if plan.parts.credit.memory() is None:
        return
    for index, part in enumerate(parts):
        if part.trains_older_episodes:
            why = f"{part.name} trains stored episodes again, and remembered values would count them each time"
            yield _refused(f"curriculum.{index}", "credit.decay", why, "credit.decay=0")


Rule = Callable[[RlPlan, Sequence[Part]], Iterator[RecipeError]]
RULES: tuple[Rule, ...] = (
    _of_lone_episodes,
    _of_unread_credit,
    _of_dropped_failures,
    _of_cancelled_corrections,
    _of_the_temperature,
    _of_the_horizon,
    _of_hints,
    _of_one_source,
    _of_noise,
    _of_streamed_groups,
    _of_repeated_episodes,
)
"""In this order; the first error raises."""


def _of_preferences(plan: StagePlan, stages: Sequence[StagePlan]) -> Iterator[RecipeError]:
    """Pairs are made inside a group: its best episode and its worst."""
    own = plan.stage.settings
    if not isinstance(own, PreferenceStage) or own.run is None or not preference_loss(plan.stage).paired:
        return
    first = f"stages.{plan.stage.index}.preference.run"
    for other in stages[: plan.stage.index]:
        if other.stage.name != own.run:
            continue
        place, settings = f"stages.{other.stage.index}", other.stage.settings
        if isinstance(settings, SftStage):
            why = f"a pair is of two episodes of a group, and each demonstration of {own.run} is a group of its own"
            yield _refused(first, f"{place}.sft.script", why, "run: the name of an rl stage, or the loss kto")
        elif isinstance(other, RlPlan) and _alone(other):
            why = f"a pair is of two episodes of a group, and those of {own.run} have one"
            yield _refused(first, f"{place}.rl.train.group_size", why, "a group_size of 2 or more, or the loss kto")


def _of_collections(plan: StagePlan, stages: Sequence[StagePlan]) -> Iterator[RecipeError]:
    if not isinstance(plan, RlPlan):
        return
    earlier = [each.stage.name for each in stages if isinstance(each, RlPlan) and each.stage.index < plan.stage.index]
    for index, part in enumerate(plan.parts.make_curriculum()):
        if isinstance(part, DartSuccesses) and part.settings.stage not in (None, *earlier):
            why = f"{part.name} reads the episodes of {part.settings.stage!r}, which is no rl stage before this one"
            remedy = f"one of: {', '.join(earlier)}" if earlier else "an rl stage before this one"
            yield _refused(f"curriculum.{index}.stage", "stages", why, remedy)


def _of_memories(plan: StagePlan, stages: Sequence[StagePlan]) -> Iterator[RecipeError]:
    """Only its trainer carries a text memory on."""
    if plan.stage.index and not plan.trainer.plug_in.capabilities.memory:
        before = stages[plan.stage.index - 1]
        if before.trainer.plug_in.capabilities.memory:
            why = f"{before.trainer.name} writes a text memory, which {plan.trainer.name} does not carry on"
            remedy = "the stages that train weights first"
            yield _refused(f"stages.{plan.stage.index}", f"stages.{before.stage.index}", why, remedy)


def _of_the_best(plan: StagePlan, stages: Sequence[StagePlan]) -> Iterator[RecipeError]:
    if isinstance(plan, RlPlan) and plan.recipe.train.keep.best is not None and plan.recipe.eval is None:
        place = f"stages.{plan.stage.index}.rl.train.keep.best" if plan.stage.listed else "train.keep.best"
        why = "the best checkpoint is known by evaluations, and there are none"
        yield _refused(place, "eval", why, "eval={every: 10}")


def _alone(plan: RlPlan) -> bool:
    return plan.recipe.train.group_size == 1 and not plan.parts.make_agent().forks
