"""`benchmarks.controls`: a method and its control are compared by the tokens that the policy sampled."""

from __future__ import annotations

import pytest

from agentrl.config.loader import load_recipe
from benchmarks.controls import ARMS, METHODS, Arm, mean_up_to, values


def arm(tokens: list[int], success: list[float], name: str = "method") -> Arm:
    return Arm(method="ufo", arm=name, seed=0, tokens=tokens, success={"held out": success}, seconds=1.0)


def test_an_arm_that_samples_more_is_cut_where_the_other_ends() -> None:
    costly, cheap = arm([0, 100, 200], [0.0, 0.5, 1.0]), arm([0, 50, 100], [0.0, 0.5, 0.5], "control")
    assert values(costly, cheap) == pytest.approx((0.25, 0.375))


def test_success_between_two_checkpoints_is_interpolated() -> None:
    found = arm([0, 100], [0.2, 0.6])
    assert mean_up_to(100, found) == pytest.approx(0.4)
    assert mean_up_to(50, found) == pytest.approx(0.3), "it is .4 there"


@pytest.mark.parametrize("method", METHODS)
def test_both_arms_have_the_same_model_warm_start_tasks_and_optimiser(method: str) -> None:
    treated, control = (load_recipe(method, METHODS[method].settings, profile) for profile in ARMS.values())
    assert (treated.model, treated.warm_start, treated.tasks) == (control.model, control.warm_start, control.tasks)
    assert treated.train is not None
    assert control.train is not None
    assert treated.train.model_dump(exclude={"critic"}) == control.train.model_dump(exclude={"critic"})
    assert treated.train.iterations % treated.train.checkpoint_every == 0, "the last checkpoint is the end"
