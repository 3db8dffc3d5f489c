"""What every estimator says it reads is what it reads; and where a penalty goes because of that."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from agentrl.estimators.estimator import estimator
from agentrl.estimators.registry import ESTIMATORS, CreditAssigner
from agentrl.estimators.table import CreditTable
from agentrl.types.errors import CreditError
from tests.estimators.tables import Member, Step, table_of, with_everything

BUILT_IN = ESTIMATORS.all()

TOTAL = [name for name, each in BUILT_IN.items() if "score" in each.settings.model_fields and name != "role_grpo"]
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in BUILT_IN),
    *((name, {"score": "total"}) for name in TOTAL if name != "copo"),
    ("copo", {"score": "total", "slope": 0.0}),  # two groups' means are +-0.7 deviations apart, whatever they are
    ("mt_grpo", {"form": "general"}),
    ("ppr", {"baseline": "group"}),
    ("spa", {"baseline": "group"}),
]


def table() -> CreditTable:
    """Two groups of four trajectories of two or three turns, none of the scores equal to another or beyond 0 to 1."""
    members = [
        Member("gh"[k // 4], 0.1 + k / 10, [Step("ab"[t % 2], 0.0, 2) for t in range(2 + k % 2)]) for k in range(8)
    ]
    return with_everything(table_of(members))


def credited(name: str, settings: dict[str, Any], table: CreditTable) -> list[float]:
    built_in = BUILT_IN[name]
    found = built_in(table, built_in.settings(**settings))
    return found.turn.tolist() + ([] if found.token is None else found.token.tolist())


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value))
def test_an_estimator_reads_what_it_says_and_nothing_else(name: str, settings: dict[str, Any]) -> None:
    reads = CreditAssigner(BUILT_IN[name], BUILT_IN[name].settings(**settings)).reads
    assert reads is not None
    base, rng = table(), np.random.default_rng(0)
    before = credited(name, settings, base)
    later = base.turn > 0
    moved = {
        # Scores stay within 0 and 1, and some cross every threshold there is.
        "outcome": dataclasses.replace(base, score=base.score[::-1].copy()),
        "turns": dataclasses.replace(base, reward=np.where(later, -0.05 * rng.random(base.n_turns), 0.0)),
        "first_turn": dataclasses.replace(base, reward=np.where(later, 0.0, -0.05 * rng.random(base.n_turns))),
        "tokens": base.with_columns(token_reward=-rng.random(base.n_tokens)),
    }
    changed = {w for w, other in moved.items() if not np.allclose(credited(name, settings, other), before, atol=1e-9)}
    said = {"outcome" if what == "verdict" else what for what in reads}
    if "turns" in said:
        said.add("first_turn")
    if name in ("nsr", "w_reinforce") and "turns" in said:  # so small a reward moves no score across the threshold
        changed |= {"turns", "first_turn"}
    assert changed == said


@pytest.mark.parametrize(("name", "settings", "place"), [
    ("grpo", {}, "outcome"),
    ("igpo", {}, "outcome"),
    ("salt", {}, "outcome"),
    ("gigpo", {}, "turns"),
    ("grpo", {"score": "total"}, "turns"),
    ("mt_grpo", {}, "outcome"),  # of turns it reads the first alone
    ("reinforce_pp", {}, "tokens"),
    ("gae", {}, "tokens"),
    ("spa", {}, "tokens"),
    ("ppr", {}, "tokens"),
])  # fmt: skip
def test_a_penalty_goes_into_the_finest_reward_that_is_read(name: str, settings: dict[str, Any], place: str) -> None:
    assert CreditAssigner(BUILT_IN[name], BUILT_IN[name].settings(**settings)).penalty_place() == place


@pytest.mark.parametrize(("name", "settings", "why"), [
    ("bnpo", {}, "takes the outcome for right or wrong"),
    ("bnpo", {"score": "total"}, "takes the outcome for right or wrong"),
    ("nsr", {}, "takes the outcome for right or wrong"),
    ("ppr", {"baseline": "group"}, "takes the outcome for right or wrong"),
    ("pref_grpo", {}, "reads no reward"),
    ("spa", {"baseline": "group"}, "reads no reward"),
])  # fmt: skip
def test_a_penalty_that_would_be_lost_is_refused(name: str, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(CreditError, match=why) as caught:
        CreditAssigner(BUILT_IN[name], BUILT_IN[name].settings(**settings)).penalty_place()
    assert "train.kl.place" in str(caught.value)
    assert "place: loss" in str(caught.value)


def test_user_code_says_what_it_reads() -> None:
    def mine(table: CreditTable) -> Any:
        return table.returns(1.0)

    silent = ESTIMATORS.find(mine)
    with pytest.raises(CreditError, match="does not say which rewards it reads") as caught:
        CreditAssigner(silent, silent.settings()).penalty_place()
    assert "@estimator(reads=" in str(caught.value)
    spoken = estimator(reads=["turns", "outcome"])(mine)
    assert CreditAssigner(spoken, spoken.settings()).penalty_place() == "turns"


def test_a_need_that_is_not_a_column_is_named() -> None:
    def mine(table: CreditTable) -> Any:
        return table.returns(1.0)

    with pytest.raises(CreditError, match="'logprob', which is not a column") as caught:
        estimator(needs=["logprob"])(mine)  # type: ignore[list-item]
    assert "it is now 'behaviour_logprob'" in str(caught.value)
    with pytest.raises(CreditError, match="did you mean 'entropy'"):
        estimator(needs=["entropi"])(mine)  # type: ignore[list-item]
