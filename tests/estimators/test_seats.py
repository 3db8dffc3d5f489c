"""Several seats in one episode: each is credited for what it earned itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agentrl.api.recipe_check import check
from agentrl.config.credit import CreditSettings
from agentrl.engines.scripted import Say
from agentrl.estimators.registry import ESTIMATORS, CreditAssigner, load_credit
from agentrl.estimators.table import CreditTable
from agentrl.rollouts.agent import Agent
from agentrl.rollouts.specs import EpisodeSpec
from agentrl.types.episode import Context, Episode, Node, Turn
from agentrl.types.errors import CreditError
from agentrl.types.paths import data_path
from agentrl.types.task import Task
from tests.rollouts.world import collect, make_context, make_parts

HERE = __name__
BY_TOTAL = ["mars", "returns", "reinforce_pp", "role_grpo"]
BY_OUTCOME = ["grpo", "rloo", "dr_grpo", "opo", "gpg", "opmd", "mt_grpo", "reinforce_pp_baseline"]


def assigner(name: str, **settings: Any) -> CreditAssigner:
    return load_credit(CreditSettings.model_validate({"use": name, **settings}))


def game(number: int, movers: list[int], winner: int, *, own: bool = True, group: str = "g") -> Episode:
    """A game of two seats. `own`: seat 1 has an outcome of its own, else each player was rewarded in its last turn."""
    last = {seat: max((k for k, mover in enumerate(movers) if mover == seat), default=-1) for seat in (0, 1)}
    won = [1.0 if seat == winner else -1.0 for seat in (0, 1)]
    turns = [
        Turn(
            index=k,
            node=k,
            text="move",
            finish="stop",
            agent=f"player {mover}",
            context="main" if mover == 0 else "player 1",
            rewards={} if own or k != last[mover] else {"won": won[mover]},
        )
        for k, mover in enumerate(movers)
    ]
    seat = Context(role="player 1", prompt=[], outcome=won[1] if own else None)
    return Episode(
        id=f"{group}#{number}",
        group_id=group,
        task=Task(id="t", instruction=[]),
        status="done",
        nodes=[Node(parent=-1, kind="sampled", token_ids=[1, 2], logprobs=[-0.5, -0.5]) for _ in movers],
        turns=turns,
        reward=won[0] if own else 0.0,
        contexts={"player 1": seat} if 1 in movers else {},
    )


GAMES = [([0, 1, 0, 1, 0], 0), ([0, 1, 0, 1], 1), ([0, 1, 0], 0), ([0, 1, 0, 1, 0, 1], 1)]


def by_result(name: str, episodes: list[Episode], **settings: Any) -> dict[tuple[str, bool], list[float]]:
    """Advantages by role and whether it won."""
    credits, _ = assigner(name, **settings).assign(episodes)
    found: dict[tuple[str, bool], list[float]] = {}
    for episode, credit, (_, winner) in zip(episodes, credits, GAMES, strict=True):
        for turn, advantage in zip(episode.turns, credit.turn_advantages, strict=True):
            found.setdefault((turn.agent, turn.agent == f"player {winner}"), []).append(advantage)
    return found


@pytest.mark.parametrize("name", BY_TOTAL + BY_OUTCOME)
def test_each_seat_gets_more_for_a_win(name: str) -> None:
    found = by_result(name, [game(k, movers, winner) for k, (movers, winner) in enumerate(GAMES)])
    for seat in ("player 0", "player 1"):
        assert min(found[seat, True]) > max(found[seat, False])
        assert min(found[seat, True]) > 0 > max(found[seat, False])


@pytest.mark.parametrize("name", BY_TOTAL)
def test_rewards_of_turns_are_those_of_their_seat(name: str) -> None:
    found = by_result(name, [game(k, movers, winner, own=False) for k, (movers, winner) in enumerate(GAMES)])
    for seat in ("player 0", "player 1"):
        assert min(found[seat, True]) > 0 > max(found[seat, False])


def test_grpo_takes_rewards_of_turns_by_seat_where_it_reads_them() -> None:
    episodes = [game(k, movers, winner, own=False) for k, (movers, winner) in enumerate(GAMES)]
    found = by_result("grpo", episodes, score="total")
    for seat in ("player 0", "player 1"):
        assert min(found[seat, True]) > 0 > max(found[seat, False])


def test_the_result_is_in_the_order_of_the_turns() -> None:
    one = game(0, [1, 0, 0, 1], 0)
    other = game(1, [0, 1], 1)
    credits, metrics = assigner("rloo").assign([one, other])
    assert [credit.episode_id for credit in credits] == ["g#0", "g#1"]
    assert credits[0].turn_advantages == [-2.0, 2.0, 2.0, -2.0]
    assert credits[1].turn_advantages == [-2.0, 2.0]
    assert metrics["groups"] == 2  # one for each role
    assert metrics["zero_variance_groups"] == 0
    tokens = assigner("reinforce_pp").assign([one, other])[0][0].token_advantages
    assert tokens is not None
    assert np.sign(tokens).tolist() == [-1, -1, 1, 1, 1, 1, -1, -1]


def test_columns_of_models_go_with_their_tokens() -> None:
    """A value of a token that equals what comes of its seat leaves nothing to credit."""
    episodes = [game(0, [0, 1, 1, 0], 0), game(1, [0, 1], 1)]
    values = {"g#0": [1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0], "g#1": [-1.0, -1.0, 1.0, 1.0]}
    columns = {"value": {name: np.array(value) for name, value in values.items()}}
    credits, _ = assigner("gae", whiten=False).assign(episodes, columns)
    assert [credit.token_advantages for credit in credits] == [[0.0] * 8, [0.0] * 4]
    assert [credit.value_targets for credit in credits] == [*values.values()]


def test_a_member_in_which_one_seat_never_moved_is_compared_with_that_seat() -> None:
    episodes = [game(0, [0], 1), game(1, [0, 1, 0], 0), game(2, [0, 1], 1)]
    credits, metrics = assigner("dr_grpo").assign(episodes)
    assert credits[0].turn_advantages == pytest.approx([-2 / 3])
    assert credits[1].turn_advantages == pytest.approx([4 / 3, -1.0, 4 / 3])
    assert metrics["trajectories"] == 5


def test_an_episode_without_turns_still_has_credit() -> None:
    credits, _ = assigner("grpo").assign([game(0, [], 1), game(1, [0, 1], 0), game(2, [0, 1], 1)])
    assert [len(credit.turn_advantages) for credit in credits] == [0, 2, 2]


def test_roles_that_share_everything_are_one_trajectory() -> None:
    """A helper that few episodes ask is credited with the outcome that all of them share."""
    shared = [
        msgspec.structs.replace(game(k, movers, 0, own=False), reward=float(k == 0), turns=without(movers))
        for k, movers in enumerate(([0, 1, 0], [0], [0]))
    ]
    credits, metrics = assigner("dr_grpo").assign(shared)
    assert credits[0].turn_advantages == pytest.approx([2 / 3] * 3)
    assert metrics["trajectories"] == 3


def without(movers: list[int]) -> list[Turn]:
    return [msgspec.structs.replace(turn, rewards={}) for turn in game(0, movers, 0).turns]


def test_other_groups_stay_as_they_are() -> None:
    plain = [msgspec.structs.replace(each, group_id="h", id=f"h#{k}", contexts={}, turns=without([0])) for k, each in
             enumerate([game(0, [0], 0), game(1, [0], 1)])]  # fmt: skip
    alone, _ = assigner("returns").assign(plain)
    beside, _ = assigner("returns").assign([*plain, *(game(k, *each) for k, each in enumerate(GAMES))])
    assert [credit.turn_advantages for credit in beside[:2]] == [credit.turn_advantages for credit in alone]


def test_mars_parts_roles_of_one_conversation() -> None:
    """The trajectories hold both players: the second gets what it has more than the first in its last turn."""
    rows: dict[str, list[Any]] = {"reward": [], "role": []}
    for movers, winner in GAMES:
        score = 1.0 if winner == 0 else -1.0
        last = max(k for k, mover in enumerate(movers) if mover == 1)
        rows["reward"] += [-2 * score if k == last else 0.0 for k in range(len(movers))]
        rows["role"] += [f"player {mover}" for mover in movers]
    turns = len(rows["reward"])
    table = CreditTable.from_columns(
        episode=[f"e{k}" for k in range(len(GAMES))], group=["g"] * len(GAMES),
        score=[1.0 if winner == 0 else -1.0 for _, winner in GAMES], length=[len(movers) for movers, _ in GAMES],
        tokens=[1] * turns, observation_tokens=[0] * turns, **rows,
    )  # fmt: skip
    advantage = iter(ESTIMATORS.all()["mars"](table).turn)
    for movers, winner in GAMES:
        for mover in movers:
            assert (next(advantage) > 0) == (mover == winner)


@pytest.mark.parametrize("name", ["pref_grpo", "copo", "igpo", "hcapo", "spa", "implicit_prm", "sweet"])
def test_what_is_known_of_whole_episodes_only_cannot_credit_a_seat(name: str) -> None:
    with pytest.raises(CreditError, match=f"{name} reads .* of whole episodes"):
        assigner(name).assign([game(0, [0, 1], 0), game(1, [0, 1], 1)])


@pytest.mark.parametrize("name", ["pref_grpo", "copo", "hcapo", "spa", "implicit_prm", "sweet"])
def test_the_check_of_a_recipe_refuses_it(name: str) -> None:
    with pytest.raises(CreditError, match="the seats of an episode have outcomes of their own"):
        check(str(data_path("recipes", "games") / "self-play.yaml"), [f"credit={name}"])


class Duel(Agent):
    """Two seats; the second one is given what the task says."""

    seats = True

    async def run(self, session: Any) -> None:
        await session.generate(agent="first")
        other = session.context("other", [{"role": "user", "content": "You."}], role="second")
        await other.generate()
        (session if session.task.data.get("main") else other).score(float(session.task.data["score"]))
        session.finish("answer", "over")


class Silent(Duel):
    """It does not say that it has seats."""

    seats = False


def talk(task: Task, rng: Any) -> Any:
    while True:
        yield Say("hm")


async def test_an_outcome_of_a_context_is_recorded(tmp_path: Path) -> None:
    context = make_context(make_parts(tmp_path, agent={"use": f"{HERE}:Duel"}), talk)
    (episode,) = await collect(context, [EpisodeSpec("e#0", "e", Task.of("t", "Play.", score=0.25))])
    assert episode.contexts["other"].outcome == 0.25
    assert episode.outcome_of(episode.turns[1]) == 0.25


@pytest.mark.parametrize(
    ("agent", "data", "told"),
    [
        ("Silent", {"score": 1.0}, "seats = True"),
        ("Duel", {"score": 1.0, "main": True}, "let a function under 'rewards' give it"),
        ("Duel", {"score": "nan"}, "finite number"),
    ],
)
async def test_what_is_no_outcome_of_a_seat(tmp_path: Path, agent: str, data: dict[str, Any], told: str) -> None:
    context = make_context(make_parts(tmp_path, agent={"use": f"{HERE}:{agent}"}), talk)
    (episode,) = await collect(context, [EpisodeSpec("e#0", "e", Task.of("t", "Play.", **data))])
    assert episode.status == "user_error"
    assert episode.error is not None
    assert told in episode.error.message
