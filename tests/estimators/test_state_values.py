"""Values of states that are counted, by hand: `gagpo`, and what it remembers between iterations."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as evolve
from pydantic import BaseModel

from agentrl.config.credit import CreditSettings
from agentrl.estimators.estimator import Advantages, estimator
from agentrl.estimators.registry import ESTIMATORS, CreditAssigner, load_credit
from agentrl.estimators.state_values import CountedStates, StateValues, shared_states
from agentrl.estimators.table import CreditTable
from agentrl.types.episode import Episode
from agentrl.types.errors import CreditError, RecipeError
from agentrl.types.task import Task
from tests.estimators.tables import Member, Step, run, table_of
from tests.estimators.test_credit_properties import MEMBERS
from tests.estimators.test_seats import game


def path(score: float, states: str, group: str = "g") -> Member:
    """A trajectory of one-token turns, each in the state of its letter."""
    return Member(group, score, [Step(state, 0.0, 1) for state in states])


def gagpo(table: CreditTable, **settings: Any) -> Advantages:
    return run("gagpo", table, **settings)


HALF = {"gamma": 0.5, "lam": 0.5, "std": "none"}
# V(a) = (1/2 + 0 + 0) / 3 = 1/6, V(b) = (1 + 0) / 2 = 1/2, V(c) = 0. Differences: in a 1/2 * 1/2 - 1/6 = 1/12 and, to
# c, -1/6; in b 1/2 and -1/2; in c 0. A quarter of the next turn's advantage is added.
SMALL = table_of([path(1, "ab"), path(0, "ab"), path(0, "ac")])
BY_HAND = np.array([1 / 12 + 1 / 8, 1 / 2, 1 / 12 - 1 / 8, -1 / 2, -1 / 6, 0])


def _columns(rows: list[list[float]]) -> str:
    return b64encode(np.array(rows, "<f8").tobytes()).decode()


class TestGagpo:
    def test_by_hand(self):
        found = gagpo(SMALL, **HALF)
        np.testing.assert_allclose(found.turn, BY_HAND, atol=1e-15)
        assert found.metrics == {"step_group_size": 2.0, "single_step_groups": pytest.approx(1 / 3)}

    def test_it_is_divided_by_the_deviation_of_the_batch(self):
        spread = {"sample": BY_HAND.std(ddof=1), "population": BY_HAND.std()}
        for std, by in spread.items():
            np.testing.assert_allclose(gagpo(SMALL, **{**HALF, "std": std}).turn, BY_HAND / (by + 1e-6))

    def test_with_memory_a_batch_that_is_better_as_a_whole_gains(self):
        """Its returns do not differ: about their mean they have no scale, or that of a few stragglers."""
        flat = table_of([path(1, "a") for _ in range(8)])
        for before in (0.5, 0.98):
            remembered = flat.with_columns(state_value=np.full(8, before))
            found = run("gagpo", remembered, decay=0.5).turn
            np.testing.assert_allclose(found, np.sqrt(7 / 8), rtol=1e-3)
        straggler = table_of([*(path(1, "a") for _ in range(63)), path(0, "a")])
        value = np.full(64, 0.01)
        assert abs(run("gagpo", straggler.with_columns(state_value=value), decay=0.5).turn).max() < 2

    def test_or_normalised_in_each_group(self):
        other = table_of([path(1, "ab"), path(0, "ab"), path(0, "ac"), path(3, "ab", "h"), path(0, "ab", "h")])
        found = gagpo(other, gamma=0.5, lam=0.5, over="group").turn
        np.testing.assert_allclose(found[:6], (BY_HAND - BY_HAND.mean()) / (BY_HAND.std(ddof=1) + 1e-6), atol=1e-15)
        assert found[6:].mean() == pytest.approx(0)
        assert found[6:].std(ddof=1) == pytest.approx(1, abs=1e-5)

    def test_the_episode_part_is_that_of_gigpo(self):
        found = gagpo(SMALL, gamma=0.5, lam=0.5, episode=2.0)
        np.testing.assert_allclose(found.parts["episode"], 2 * run("gigpo", SMALL).parts["episode"])
        np.testing.assert_allclose(found.parts["step"], gagpo(SMALL, gamma=0.5, lam=0.5).turn)
        assert set(gagpo(SMALL).parts) == {"step"}

    @settings(max_examples=30)
    @given(MEMBERS, st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.sampled_from([0.0, 0.4, 1.0]))
    def test_it_is_the_rule_in_plain_loops(self, members, gamma, lam):
        table = table_of(members)
        if not (table.state >= 0).any():
            return
        returns: dict[Any, list[float]] = defaultdict(list)
        for member in members:
            togo = 0.0
            for t, step in reversed([*enumerate(member.steps)]):
                togo = step.reward + (member.score if t == len(member.steps) - 1 else 0.0) + gamma * togo
                returns[member.group, step.state].append(togo)
        wanted: list[float] = []
        for member in members:
            found, following, after = [], 0.0, 0.0
            for t, step in reversed([*enumerate(member.steps)]):
                value = float(np.mean(returns[member.group, step.state]))
                reward = step.reward + (member.score if t == len(member.steps) - 1 else 0.0)
                following = reward + gamma * after - value + gamma * lam * following
                after = value
                found.append(following)
            wanted += found[::-1]
        np.testing.assert_allclose(gagpo(table, gamma=gamma, lam=lam, std="none").turn, wanted, atol=1e-9)

    def test_states_that_never_recur_give_exactly_nothing_but_the_episode_part(self):
        """Rounding leaves 1e-17 between a return and itself, which no deviation may blow up."""
        members = [Member("g", 0.1 * k, [Step(f"{k}.{t}", 0.1, 1) for t in range(9)]) for k in range(5)]
        for over in ("batch", "group"):
            assert not gagpo(table_of(members), over=over).turn.any()
        with_episode = gagpo(table_of(members), episode=1.0)
        assert with_episode.turn.tolist() == with_episode.parts["episode"].tolist()
        assert with_episode.turn.any()

    def test_a_group_of_one_learns_from_states_that_come_again(self):
        assert not gagpo(table_of([path(1, "abc")])).turn.any()
        # V(a) = (1/4 + 1/2) / 2 = 3/8, V(b) = 1. In a: 3/16 - 3/8 and 1/2 - 3/8.
        found = gagpo(table_of([path(1, "aab")]), gamma=0.5, lam=0.0, std="none").turn
        np.testing.assert_allclose(found, [-3 / 16, 1 / 8, 0], atol=1e-15)

    def test_turns_without_a_key_share_one_state(self):
        members = [Member("g", s, [Step(None, 0, 1), Step("a", 0, 1), Step(None, 0, 1)]) for s in (1.0, 0.0)]
        lettered = [path(1, "zaz"), path(0, "zaz")]
        np.testing.assert_array_equal(gagpo(table_of(members)).turn, gagpo(table_of(lettered)).turn)

    def test_groups_of_one_task_count_together(self):
        table = table_of([path(1, "a", "g"), path(0, "a", "h"), path(0, "a", "k")])
        assert not gagpo(table).turn.any()
        one = replace(table, task_ids=["t", "t", "u"])
        np.testing.assert_allclose(gagpo(one, std="none").turn, [0.5, -0.5, 0])
        assert gagpo(one).metrics == {"step_group_size": 1.5, "single_step_groups": 0.5}
        nameless = replace(table, task_ids=["", "", ""])
        assert not gagpo(nameless, std="none").turn.any(), "a task without an id is its group's alone"


def test_shared_states_were_met_by_another_episode_of_the_task() -> None:
    shared = [path(1, "ab"), path(0, "aac")]
    assert shared_states(table_of(shared)) == 3 / 5, "a, not b and c; meeting a twice is not sharing it"
    assert shared_states(table_of([path(1, "aa")])) == 0, "a group of one"
    apart = table_of([path(1, "a", "g"), path(0, "a", "h")])
    assert shared_states(apart) == 0
    assert shared_states(replace(apart, task_ids=["t", "t"])) == 1, "two groups of one task"
    assert shared_states(replace(apart, task_ids=["", ""])) == 0, "a task without an id is its group's alone"
    unknown = [Member("g", s, [Step(None, 0, 1), Step("a", 0, 1)]) for s in (1.0, 0.0)]
    assert shared_states(table_of(unknown)) == 0.5, "no key, no state"
    assert shared_states(table_of([])) == 0


def test_the_share_is_a_metric_of_credit_if_states_were_recorded(make_episode: Any) -> None:
    for keys, share in ((("b", "c"), 0.5), ((None, None), None)):
        made = [make_episode(f"g#{k}", "g", 1.0, [(keys[0] and "a", 1, None), (keys[k], 1, None)]) for k in (0, 1)]
        assert load_credit(CreditSettings(use="grpo")).assign(made)[1].get("shared_states") == share


def memory(decay: float = 0.5, **settings: Any) -> StateValues:
    return StateValues(CountedStates(gamma=1.0, decay=decay, **settings))


def tasked(*members: Member, tasks: list[str] | None = None, start: int = 0) -> CreditTable:
    table = table_of(members, [str(start + k) for k in range(len(members))])
    return replace(table, task_ids=tasks or ["t"] * table.n_groups)


class TestMemory:
    def test_by_hand(self):
        known = memory()
        value, told = known.add(tasked(path(1, "ab"), path(0, "a")), 0)
        assert value.tolist() == [0.5, 1, 0.5]
        assert told == {"known_states": 0.0, "remembered_states": 2.0}
        # a: half of 1 of 2, and 1 of 1. c is new.
        value, told = known.add(tasked(path(1, "ac"), start=2), 1)
        assert value.tolist() == [(0.5 + 1) / (1 + 1), 1]
        assert told == {"known_states": 0.5, "remembered_states": 3.0}
        # Two iterations later: a quarter of 1.5 of 2 is left of a, an eighth of 1 of 1 of b.
        value, _ = known.add(tasked(path(0, "ab"), start=4), 3)
        np.testing.assert_allclose(value, [0.375 / (0.5 + 1), 0.125 / (0.125 + 1)])

    def test_decay_0_is_the_batch_alone_and_decay_1_the_mean_of_all(self):
        none, all_ = memory(0.0), memory(1.0)
        for iteration, score in enumerate([1.0, 0.0, 0.5]):
            table = tasked(path(score, "a", f"g{iteration}"))
            assert none.add(table, iteration)[0].tolist() == [score]
            value = all_.add(table, iteration)[0]
        np.testing.assert_allclose(value, [0.5])

    def test_tasks_and_keyless_turns_are_apart(self):
        known = memory()
        odd = [Member("g", 1.0, [Step(None, 0.0, 1)]), Member("h", 0.25, [Step("", 0, 1)]), path(0.5, "-", "k")]
        known.add(tasked(*odd, tasks=["t", "t", "t"]), 0)
        value, _ = known.add(tasked(*odd, tasks=["t", "t", "u"], start=3), 1)
        assert value.tolist() == [1.0, 0.25, 0.5]
        assert len(known) == 4

    def test_no_task_and_state_read_like_another_pair(self):
        known = memory()
        known.add(tasked(path(1, "x", "g"), Member("h", 0.0, [Step("b+x", 0, 1)]), tasks=["t+b", "t"]), 0)
        assert len(known) == 2

    def test_seats_are_apart(self):
        """A role is compared with itself: the winner's states do not count for the loser."""
        played = [game(k, [0, 1, 0, 1], winner=0) for k in range(2)]
        episodes = [evolve(one, turns=[evolve(turn, state="s") for turn in one.turns]) for one in played]
        value, _ = memory().add(CreditTable.from_episodes(episodes), 0)
        assert value.tolist() == [1, -1, 1, -1] * 2

    @settings(max_examples=30)
    @given(data=st.data(), members=MEMBERS)
    def test_the_order_of_episodes_does_not_matter(self, data, members):
        order = data.draw(st.permutations(range(len(members))))
        one, other = memory(max_states=3), memory(max_states=3)
        tables = table_of(members), table_of([members[i] for i in order], [str(i) for i in order])
        for iteration in range(2):
            found = [known.add(table, iteration)[0] for known, table in zip((one, other), tables, strict=True)]
            for place, i in enumerate(order):
                mine, theirs = (slice(*t.offsets[k : k + 2]) for t, k in zip(tables, (i, place), strict=True))
                np.testing.assert_allclose(found[0][mine], found[1][theirs], atol=1e-12)
            assert one.state_dict()["keys"] == other.state_dict()["keys"], "the same are forgotten"

    def test_the_oldest_are_forgotten(self):
        known = memory(max_states=3)
        known.add(tasked(path(1, "ab")), 0)
        known.add(tasked(path(1, "ac"), start=1), 1)
        assert len(known) == 3
        # b was met last in iteration 0; a and c after it.
        known.add(tasked(path(0, "d"), start=2), 2)
        assert known.add(tasked(path(0, "ab"), start=3), 3)[1]["known_states"] == 0.5
        # A batch of more states than are kept still has the values of all.
        value, _ = memory(max_states=2).add(tasked(path(1, "abcd"), path(0, "a")), 0)
        assert value.tolist() == [0.5, 1, 1, 1, 0.5]

    def test_it_comes_back_from_json(self):
        known, again = memory(max_states=5), memory(max_states=5)
        known.add(tasked(path(0.1, "abc"), path(0.7, "acd")), 0)
        known.add(tasked(path(0.3, "ax"), start=2), 2)
        again.load_state_dict(json.loads(json.dumps(known.state_dict())), 3)
        assert again.state_dict() == known.state_dict()
        following = tasked(path(0.9, "abxyz"), start=3)
        assert known.add(following, 3)[0].tolist() == again.add(following, 3)[0].tolist()
        assert known.state_dict() == again.state_dict()

    @pytest.mark.parametrize(
        "damage",
        [
            lambda state: {**state, "keys": state["keys"][:-8]},
            lambda state: {**state, "keys": "%%%"},
            lambda state: {**state, "counts": state["counts"][:-32]},
            lambda state: {**state, "counts": _columns([[1.0, 1.0, 99.0]] * 3)},
            lambda state: {**state, "counts": _columns([[float("nan"), 1.0, 0.0]] * 3)},
            lambda state: {**state, "counts": _columns([[1.0, 0.0, 0.0]] * 3)},
        ],
    )
    def test_a_damaged_state_is_refused(self, damage):
        known = memory()
        known.add(tasked(path(0.1, "abc")), 0)
        assert len(known) == 3
        with pytest.raises(ValueError):  # base64's own, or ours
            memory().load_state_dict(damage(known.state_dict()), 1)

    def test_large_states_take_no_more_room(self):
        known = memory()
        million = "x" * 1_000_000
        value, _ = known.add(tasked(Member("g", 1.0, [Step(million, 0, 1), Step(million + "y", 0, 1)])), 0)
        assert value.tolist() == [1, 1]
        assert len(json.dumps(known.state_dict())) < 200
        assert known.add(tasked(Member("g", 0.0, [Step(million, 0, 1)]), start=1), 1)[1]["known_states"] == 1


def assigner(**settings: Any) -> CreditAssigner:
    return load_credit(CreditSettings.model_validate({"use": "gagpo", **settings}))


def episodes_of(make_episode: Any, iteration: int, scores: list[float], task: str = "t") -> list[Episode]:
    """A group of a task, whose members go a, b or a, c."""
    group = f"{task}@{iteration}"
    made = [
        make_episode(f"{group}#{k}", group, score, [("a", 1, None), ("bc"[k % 2], 1, None)])
        for k, score in enumerate(scores)
    ]
    return [evolve(episode, task=Task(id=task, instruction=[])) for episode in made]


class Mine(CountedStates):
    scale: float = 2.0


class Without(BaseModel):
    gamma: float = 1.0


def mine(table: CreditTable, settings: Mine) -> Any:
    return settings.scale * table.state_value


def other(table: CreditTable, settings: Without) -> Any:
    return table.state_value


class TestCredit:
    SCORES = ([1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 0.0])

    def credited(self, make_episode: Any, credit: CreditAssigner, *, remembers: bool = True) -> list[list[float]]:
        known, found = credit.memory() if remembers else None, []
        for iteration, scores in enumerate(self.SCORES):
            given = [e for task in "tu" for e in episodes_of(make_episode, iteration, scores, task)]
            credits, _ = credit.assign(given, memory=known, iteration=iteration)
            found.append([value for each in credits for value in each.turn_advantages])
        return found

    def test_earlier_iterations_count(self, make_episode):
        credit = assigner(decay=0.5)
        with_memory, without = (self.credited(make_episode, credit, remembers=each) for each in (True, False))
        assert with_memory[0] == without[0]
        assert with_memory[1] != without[1]
        assert without == self.credited(make_episode, assigner()), "the batch alone"

    def test_decay_0_is_no_memory(self, make_episode):
        """The limit of the memory, which `decay: 0` does not keep at all."""
        credit = assigner()
        assert credit.memory() is None
        assert credit.needs == ["state"]
        nothing = StateValues(CountedStates(gamma=0.95, decay=0.0))
        wanted = self.credited(make_episode, credit)
        for iteration, scores in enumerate(self.SCORES):
            given = [e for task in "tu" for e in episodes_of(make_episode, iteration, scores, task)]
            value, _ = nothing.add(CreditTable.from_episodes(given), iteration)
            table = CreditTable.from_episodes(given).with_columns(state_value=value)
            found = ESTIMATORS.find("gagpo")(table, assigner(decay=0.5).settings)
            assert found.turn.tolist() == wanted[iteration]

    def test_a_group_of_one_learns_from_what_is_remembered(self, make_episode):
        credit = assigner(decay=0.5, std="none", gamma=1.0, lam=0.0)
        assert not credit.needs_members
        known = credit.memory()
        credit.assign(episodes_of(make_episode, 0, [0.0]), memory=known, iteration=0)
        (found,), metrics = credit.assign(episodes_of(make_episode, 1, [1.0]), memory=known, iteration=1)
        # a and b: (0 + 1) / (1/2 + 1) = 2/3. To b nothing changes, at the end 1 - 2/3.
        np.testing.assert_allclose(found.turn_advantages, [0, 1 / 3])
        assert metrics["known_states"] == 1

    def test_no_state_at_all_is_refused(self, make_episode):
        bare = [make_episode("e", "g", 1.0, [(None, 1, None)])]
        for decay in (0.0, 0.5):
            with pytest.raises(CreditError, match="no turn has a recorded state") as caught:
                assigner(decay=decay).assign(bare)
            assert "--set credit=gagpo" in str(caught.value)

    def test_an_estimator_of_the_users_own_reads_the_column(self, make_episode):
        needs = estimator(needs=["state", "state_value"])
        own = CreditAssigner(needs(mine), Mine(gamma=1.0))
        (found, *_), _ = own.assign(episodes_of(make_episode, 0, [1.0, 0.0]))
        assert found.turn_advantages == [1.0, 2.0]
        with pytest.raises(CreditError, match="no counted values of states") as caught:
            CreditAssigner(needs(other), Without()).assign(episodes_of(make_episode, 0, [1.0, 0.0]))
        assert "CountedStates" in str(caught.value)

    @pytest.mark.parametrize("wrong", [{"decay": 1.1}, {"decay": -0.1}, {"max_states": 0}, {"memory": 1}])
    def test_settings_out_of_range_are_refused(self, wrong):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            assigner(**wrong)
