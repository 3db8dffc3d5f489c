"""Warnings about recipes that are valid but would waste a training."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

from agentrl.agents.compacting import CompactingAgent
from agentrl.agents.recent import RecentAgent
from agentrl.agents.retrying import RetryingAgent
from agentrl.config.recipe import EvalSettings, TrainSection
from agentrl.curriculum.methods.zero_variance import ZeroVariance
from agentrl.curriculum.parts import Part, Solving
from agentrl.engines.registry import chosen_engine
from agentrl.estimators.registry import CreditAssigner
from agentrl.preflight.bounds import unknown_bounds
from agentrl.preflight.code import in_code
from agentrl.preflight.signal import reading_turns, unread_turn_rewards
from agentrl.rollouts.agent import ToolAgent
from agentrl.rollouts.builder import Parts, reads_states
from agentrl.rollouts.states.registry import PLACE, Moment
from agentrl.training.stages.plan import RlPlan
from agentrl.types import values
from agentrl.types.errors import nearest
from agentrl.types.figures.of_episodes import NAMED, SUCCESS

LOSSES_OF = {
    "asymre": ("reinforce",),
    "opmd": ("reinforce",),
    "gpg": ("gpg", "reinforce"),
    "a2tgpo": ("gspo", "gspo_token", "ppo_clip", "dapo"),
}
"""By estimator: the losses of its published method, if another loss makes it a different method."""

ON_TURNS = {
    "process": "judge the turns: rewards: {process: {use: rubric_judge, reads: turn, weight: 0, judge: ...}}, or "
    "session.reward(process=...), from 0 to 1",
    "wrong": "let critiques mark the wrong turns: rewards: {wrong: {use: critique, weight: 0, judge: ...}}, or "
    "session.reward(wrong=...), the share of critiques that did",
}
"""Turn rewards that estimators read by name, and how to provide them."""


SAMPLED = 4
"""Tasks whose openings a signature is tried on."""

ONE_ROLE = (ToolAgent, RecentAgent, CompactingAgent, RetryingAgent)
"""Agents whose turns are all of one role."""


def cautions(plan: RlPlan) -> Iterator[str]:
    """The warnings before a stage of reinforcement learning begins, each with a remedy."""
    parts, recipe = plan.parts, plan.recipe
    yield from _of_the_end(recipe.eval, recipe.train)
    yield from _of_groups(parts, parts.credit, recipe.train)
    yield from _of_states(parts, parts.credit)
    yield from _of_rewards(parts, parts.credit)
    yield from _of_the_loss(plan)
    yield from _of_the_curriculum(parts, parts.credit, parts.make_curriculum())
    yield from _of_too_few_iterations(parts, recipe.train, parts.make_curriculum())


def _of_the_end(evaluation: EvalSettings | None, train: TrainSection) -> Iterator[str]:
    if evaluation is not None and not evaluation.every and train.stop is not None and train.stop.evaluates:
        yield (
            f"train.stop reads {train.stop.metric}, and eval.every is 0: it looks at the start and at the end only\n"
            "  -> eval.every=10"
        )


def _of_groups(parts: Parts, credit: CreditAssigner, train: TrainSection) -> Iterator[str]:
    alone = train.group_size == 1 and not parts.make_agent().forks
    if credit.needs_members and alone:
        yield (
            f"{credit.estimator.name} compares the episodes of a group, but train.group_size is 1: nothing is learned\n"
            "  -> train.group_size=8, or an estimator without groups (reinforce_pp, or turn_gae with a critic)"
        )
    if credit.needs_members and parts.recipe.sampling.temperature == 0:
        yield (
            "sampling.temperature is 0: all episodes of a group are equal, and nothing is learned\n"
            "  -> sampling.temperature=1"
        )


def _of_states(parts: Parts, credit: CreditAssigner) -> Iterator[str]:
    signature, name = parts.states.signature, credit.estimator.name
    if signature is None or not reads_states(credit):
        return
    try:
        keys = _keys_of_openings(parts)
    except Exception as error:
        yield (
            f"the signature {signature.name} fails on the opening of a task, without a sandbox and tools: "
            f"{type(error).__name__}: {error}\n"
            "  -> it must take a moment without turns; make it async if it needs a sandbox"
        )
        return
    if keys and all(one is None and other is None for one, other in keys):
        yield (
            f"{name} needs states, but the signature {signature.name} gives none for the first turn of a task\n"
            "  -> return a key, or agent.state=tools"
        )
    elif keys and all(one != other for one, other in keys):
        yield (
            f"{name} compares turns at equal states, but the signature {signature.name} gives two keys for one "
            "opening: no state is met twice\n  -> leave out times, random numbers and ids of objects; or "
            "agent.state=tools"
        )


def _keys_of_openings(parts: Parts) -> list[tuple[str | None, str | None]]:
    """Returns the keys of the first turn of some tasks, each computed twice. Async signatures are not called: they wait
    for what an episode opens.
    """
    signature = parts.states.signature
    if signature is None or inspect.iscoroutinefunction(signature.plug_in):
        return []
    found = []
    for task in parts.tasks.tasks[:SAMPLED]:
        moment = Moment(task, parts.opening(task))
        first, second = (
            None if (key := signature.make(moment)) is None else values.state_key(key, PLACE) for _ in range(2)
        )
        found.append((first, second))
    return found


def _of_rewards(parts: Parts, credit: CreditAssigner) -> Iterator[str]:
    name = credit.estimator.name
    if unread := unread_turn_rewards(parts):
        names = ", ".join(unread)
        yield f"{name} does not read turn rewards, but {names} scores turns\n  -> {reading_turns(credit)}"
    if unknown := unknown_bounds(parts):
        names = ", ".join(unknown)
        yield (
            f"{name} takes scores in [0, 1], and stops the training at another; nothing says what {names} gives\n"
            "  -> @reward(bounds=(0, 1)) on the function, or then: [{clip: [0, 1]}]"
        )
    if "first_turn" in (credit.reads or ()) and not by_turn(parts) and not in_code("rewards", parts):
        yield (
            f"{name} reads rewards of turns, but no reward component scores turns, nor does the code of a tool or the "
            "agent\n  -> a component that returns one number per turn, or ToolResult(..., rewards={...})"
        )
    if "role" in credit.needs and type(parts.make_agent()) in ONE_ROLE:
        yield (
            f"{name} compares turns of the same role, but {parts.recipe.agent.use} has one role only\n"
            "  -> agent: {use: delegating_agent}, an agent of your own that opens contexts with roles, or credit=grpo"
        )
    for column, remedy in ON_TURNS.items():
        if column in credit.needs and column not in parts.recipe.rewards and not in_code(column, parts):
            yield (
                f"{name} reads the turn reward {column!r}, but neither a reward component nor the code of a tool or "
                f"the agent has this name\n  -> {remedy}"
            )


def by_turn(parts: Parts) -> list[str]:
    """Returns the reward components with a weight that score turns."""
    return [each.name for each in parts.rewards.components if each.weight and each.per_turn]


def _of_the_loss(plan: RlPlan) -> Iterator[str]:
    name, loss = plan.parts.credit.estimator.name, plan.loss.name
    wanted = LOSSES_OF.get(name, (loss,))
    if loss not in wanted:
        yield f"{name} was published with the loss {wanted[0]}, but train.loss is {loss}\n  -> train.loss={wanted[0]}"
    rounded = plan.recipe.model.dtype != "float32" and chosen_engine(plan.recipe).plug_in.rounds_apart
    if rounded and not plan.recipe.train.corrects_stale_tokens:
        yield (
            f"{plan.recipe.engine.use}'s log-probabilities in half precision differ from the trainer's, and the loss "
            "does not correct for that\n  -> train.importance={high: 2}, and watch the metric mismatch_mean"
        )


def _of_the_curriculum(parts: Parts, credit: CreditAssigner, curriculum: Sequence[Part]) -> Iterator[str]:
    rewards = parts.recipe.rewards
    on_turns = ", ".join(by_turn(parts))
    for index, part in enumerate(curriculum):
        for key, verb, special in (("process", "ranks", ()), ("metric", "compares", NAMED)):
            name = getattr(part.settings, key, None)
            if isinstance(name, str) and name not in (*rewards, *special) and not in_code(name, parts):
                yield (
                    f"curriculum.{index}.{key}: {part.name} {verb} by {name!r}, but neither a reward component nor a "
                    f"tool's code has this name\n  -> {nearest(name, rewards, 'components')}; or let a tool give "
                    f"it to a turn: ToolResult(..., rewards={{{name!r}: 0.5}})"
                )
        told = parts.recipe.success or SUCCESS in rewards
        paid = [each.name for each in parts.rewards.components if each.weight]
        if isinstance(part.settings, Solving) and part.settings.metric == SUCCESS and not told and len(paid) > 1:
            yield (
                f"curriculum.{index}: {part.name} counts successes, and one is a reward of 1, the sum of "
                f"{', '.join(paid)}\n  -> name the component that tells it: success: {paid[0]}"
            )
        by_outcome = isinstance(part, ZeroVariance) and part.settings.metric is None
        if by_outcome and on_turns and "turns" in (credit.reads or ()):
            yield (
                f"curriculum.{index}: {part.name} drops groups of equal outcomes, but {credit.estimator.name} "
                f"could learn from their turn rewards ({on_turns})\n  -> {part.name}: {{metric: total}}"
            )


def _of_too_few_iterations(parts: Parts, train: TrainSection, curriculum: Sequence[Part]) -> Iterator[str]:
    """Parts that would never act in a training as short as this."""
    for index, part in enumerate(curriculum):
        passes, every = getattr(part.settings, "passes", None), getattr(part.settings, "every", None)
        if passes is not None and passes * len(parts.tasks) >= train.iterations * train.groups:
            yield (
                f"curriculum.{index}: {part.name} selects after {passes} passes over {len(parts.tasks)} tasks, and "
                f"train.iterations and train.groups are {train.iterations} and {train.groups}: it never does\n"
                f"  -> train.iterations={passes * len(parts.tasks) // train.groups * 2}, or tasks.limit="
                f"{max(1, train.iterations * train.groups // passes // 2)}"
            )
        if every is not None and every > train.iterations:
            yield (
                f"curriculum.{index}.every: {part.name} acts every {every} iterations, and train.iterations is "
                f"{train.iterations}: it never does\n  -> curriculum.{index}.every={max(1, train.iterations // 3)}"
            )
