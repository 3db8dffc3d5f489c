"""Parts that choose by measured success rates, by entropy, and by how rewards move, on numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agentrl.curriculum import Group, GroupPlan, Sampler
from agentrl.curriculum.methods.dart import DartSuccesses, DartTurns
from agentrl.curriculum.methods.measured import HardFocus, LowLikelihood, OfLevel
from agentrl.curriculum.methods.mixture import Mixture, best_mixture
from agentrl.curriculum.methods.recap import Recap
from agentrl.curriculum.methods.temperature import EntropyTarget
from agentrl.rollouts.specs import group_specs
from agentrl.training.rollout_buffer import DrawnGroup
from agentrl.types.episode import Episode
from agentrl.types.errors import TaskError, TrainError
from agentrl.types.task import Task
from tests.curriculum.test_parts import context, credited, episode, group, source

RATES = {"a": (1, 1), "b": (1, 0), "c": (0, 0)}


def drawn(part: Sampler, count: int, at: int) -> list[str]:
    return [task.id for task in part.draw(source(*RATES), count, context(at))]


def test_hard_focus_keeps_fewer_of_the_hardest_phase_by_phase() -> None:
    part = HardFocus(HardFocus.Settings(keep=[0.5, 1], every=2))
    assert drawn(part, 3, 0) == ["a", "b", "c"]
    part.observe([group(id, *rewards) for id, rewards in RATES.items()], context(0))
    assert drawn(part, 3, 1) == ["b", "c", "b"]  # two of three, in turn
    part.observe([group("b", 0, 0), group("c", 1, 0)], context(1))
    assert drawn(part, 1, 2) == ["c"]  # the rule of a phase is not applied again
    assert drawn(part, 2, 3) == ["b", "b"]  # now harder than c
    assert part.metrics() == {"tasks": 1.0}


def test_all_tasks_come_until_each_has_been_measured() -> None:
    part = OfLevel(OfLevel.Settings(passes=2))
    for at in (0, 1):
        assert drawn(part, 3, at) == ["a", "b", "c"]
        part.observe([group(id, *rewards) for id, rewards in RATES.items()], context(at))
    assert drawn(part, 2, 2) == ["b", "b"]
    with pytest.raises(ValueError, match="'low' is above 'high'"):
        OfLevel.Settings(low=0.8, high=0.2)


def test_limits_that_no_task_meets_are_an_error() -> None:
    part = OfLevel(OfLevel.Settings(low=0.6, high=0.9))
    part.name = "of_level"
    drawn(part, 3, 0)
    part.observe([group(id, *rewards) for id, rewards in RATES.items()], context(0))
    with pytest.raises(TrainError, match="of_level selects none of 3 tasks; their success rates are 0 to 1"):
        drawn(part, 1, 1)


def test_low_likelihood_keeps_what_is_seldom_right() -> None:
    part = LowLikelihood()
    assert [g.task.id for g in part.select([group(id, *of) for id, of in RATES.items()], 3, context())] == ["c"]
    assert part.metrics() == {"groups": 1.0}


def test_recap_weighs_by_convergence_and_instability() -> None:
    """a stands still at 1/2: 1 + 0. b rises from 0 to 1/2: (1/2) / (3/4) + (1/4) / (1/4) = 5/3."""
    part = Recap()
    for at, (a, b) in enumerate(((0.5, 0.0), (0.5, 0.5))):
        assert part.weights() == {}
        part.observe([group("a", a), group("b", b)], context(at))
    share = 1 / (1 + math.exp(2 / 3))
    assert part.weights() == pytest.approx({"a": 2 * share, "b": 2 - 2 * share})
    assert part.metrics() == pytest.approx({"weight/a": 2 * share, "weight/b": 2 - 2 * share})
    members = [episode("x", 1.0), episode("y", 1.0)]
    with pytest.raises(TaskError, match="no data 'source'"):
        part.refine([credited(each) for each in members], context(2))


def test_the_temperature_follows_the_entropy_within_its_limits() -> None:
    part, plan = (
        EntropyTarget(EntropyTarget.Settings(target=0.5, gain=1.0, low=0.4)),
        GroupPlan(Task.of("t", "go"), 8, 5),
    )
    found = []
    for at, logprob in enumerate((-0.75, -0.5, -3.0, -0.05)):
        found.append(part.plan(plan, context(at)).temperature)
        won = episode("e", 1.0, logprob=logprob)
        part.observe([Group("g", won.task, [won])], context(at))
    # 1 * (1 - 1/2); unchanged; half of it is below the limit.
    assert found == pytest.approx([1.0, 0.5, 0.5, 0.4])
    assert part.metrics() == pytest.approx({"entropy": 0.05, "temperature": 0.76})


def test_the_best_mixture_is_where_the_predicted_outcome_peaks() -> None:
    """Gains 0.1, 0.3 and 0.1 of all a, half of each, and all b lie on a parabola with its peak half way."""
    assert best_mixture([[1, 0], [0.5, 0.5], [0, 1]], [0.1, 0.3, 0.1], 10) == [0.5, 0.5]
    assert best_mixture([[1, 0], [0.5, 0.5], [0, 1]], [0.3, 0.2, 0.1], 10) == [1.0, 0.0]


def test_a_mixture_tries_its_pilots_and_measures_their_gain() -> None:
    part = Mixture(Mixture.Settings(every=2, pilots=[{"a": 3, "b": 1, "c": 0}, {"c": 1}]))
    assert [part.weights("abc"), part.draw(source("a", "b", "c"), 1, context(2)) and part.weights("abc")] == [
        [0.75, 0.25, 0.0],
        [0.0, 0.0, 1.0],
    ]
    for at, (a, b) in enumerate(((0, 1), (1, 1))):
        part.observe([group("a", a), group("b", b)], context(at))
    assert part._outcome("0", "abc") == pytest.approx(1 / 3)
    assert part.metrics() == {"weight/a": 0.0, "weight/b": 0.0, "weight/c": 1.0}


def test_a_drawn_group_keeps_its_temperature_in_a_checkpoint() -> None:
    plan = GroupPlan(Task.of("t", "go"), 8, 5, temperature=0.7)
    assert DrawnGroup.from_state(DrawnGroup(3, 0, plan).state_dict()).plan == plan
    assert [spec.temperature for spec in group_specs(plan, "g", 3)] == [0.7] * 8
    older = {key: value for key, value in DrawnGroup(3, 0, plan).state_dict().items() if key != "temperature"}
    assert DrawnGroup.from_state(older).plan.temperature is None


def test_dart_knows_the_successes_of_an_earlier_stage() -> None:
    part = DartSuccesses(DartSuccesses.Settings(stage="collect"))
    lost, won = episode("collect/a", 0.0), episode("collect/b", 1.0)
    failed = Group("now", won.task, [episode("c", 0.0)])
    told: list[str] = []

    def of_stage(name: str) -> list[Episode]:
        told.append(name)
        return [won, lost]

    known = replace(context(past={won.id: won}), of_stage=of_stage)
    for at in range(2):
        (joined,) = part.select([failed], 1, known)
        assert [each.id for each in joined.episodes] == ["c", "collect/b"]
        assert part.metrics() == {"joined": 1.0}, at
    assert told == ["collect"]  # read once, and then part of the state


def test_dart_says_how_many_turns_it_masked() -> None:
    part = DartTurns(DartTurns.Settings(keep=0.5))
    part.refine([credited(episode("e", 1.0, turns=4))], context())
    assert part.metrics() == {"masked": 2.0}
