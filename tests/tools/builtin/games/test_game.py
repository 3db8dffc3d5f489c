"""The `game` tool: games of every library, played through whole episodes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.tools.builtin.games.game import Game
from agentrl.tools.builtin.games.own_random import OwnRandom
from agentrl.types.episode import Episode
from agentrl.types.errors import RecipeError

GAMES = """
import asyncio, itertools, random, threading, time
from agentrl import Say
from agentrl.tools.builtin.games.play import Play, Step

class Doors:
    "The prize is behind one of two doors; what is drawn comes from the global generator."
    def reset(self, seed):
        self.prize, self.n = seed % 2, 0
        return f"left or right? {random.random()}"
    def step(self, action):
        if action == "crash":
            raise ValueError("the house fell down")
        if action == "quit":
            raise SystemExit(3)
        self.n += 1
        if action in ("nan", "inf"):
            return "odd", float(action), False, {}
        if action == "wait":
            return f"{threading.current_thread() is threading.main_thread()}", 0.25, False, {}
        if action == "slow":
            time.sleep(0.02)
            return "slow", 0.0, False, {}
        won = action == ["left", "right"][self.prize]
        return "prize" if won else "nothing", float(won), True, {}
    def key(self):
        return self.n

class Awaited(Doors):
    async def step(self, action):
        return super().step(action)

class OfOwn(Play):
    env = None
    def __init__(self):
        self.doors = Doors()
    def reset(self, seed):
        return self.doors.reset(seed)
    async def step(self, action):
        seen, reward, done, info = self.doors.step(action)
        await asyncio.sleep(0)
        return Step(seen, reward, done)

class Handed(OfOwn):
    def step(self, action):
        return super().step(action)

class Odd(Doors):
    def step(self, action):
        return "only this"

def broken(): raise OSError("no such game")

def second(seen, moves, rng):
    return moves[-1]

def moves(task, rng):
    for move in task.data["moves"]:
        yield Say(calls=[("act", {"action": move})])

def said(task, rng):
    for move in task.data["moves"]:
        yield Say(move)
"""


def played(
    folder: Path,
    settings: dict[str, Any],
    /,
    *moves: Sequence[str],
    script: str = "moves",
    limits: dict[str, float] | None = None,
    **data: Any,
) -> list[Episode]:
    """The episodes of the tool with these settings, in which these moves are made."""
    folder.mkdir(exist_ok=True)
    (folder / "task.py").write_text(GAMES)
    rows = [{"id": f"{k}", "seed": k, "moves": each, "say": "Play.", **data} for k, each in enumerate(moves)]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = {
        "name": "games",
        "tasks": {"jsonl": "./tasks.jsonl", "prompt": "{say}", "id": "id"},
        "agent": {"max_turns": 200},
        "tools": [{"game": settings}],
        "rewards": {
            "score": "agentrl.tools.builtin.games.game:score",
            "success": {"use": "agentrl.tools.builtin.games.game:success", "weight": 0},
        },
        "scripts": {"moves": "./task.py:moves", "said": "./task.py:said"},
        "credit": {"use": "gigpo"},
        "limits": {"user_errors": 100, **(limits or {})},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    run = rollout(folder, len(rows), script=script, out=folder / f"run-{random.random()}", reporters=())
    return sorted(run.dir.episodes(), key=lambda episode: int(episode.task.id))


def shown(episode: Episode) -> list[str]:
    return [message["content"] for turn in episode.turns for message in turn.observations]


def test_observations_rewards_end_and_state_of_an_environment_of_the_recipe(tmp_path: Path) -> None:
    episodes = played(
        tmp_path, {"library": "./task.py:Doors", "state": "key"}, ["wait", "left"], ["wait", "wait", "left"]
    )
    assert [e.reward for e in episodes] == [1.25, 0.5]
    assert [e.components["success"] for e in episodes] == [1.0, 0.0]
    assert episodes[1].info == {"return": 0.5, "steps": 3, "ended": True, "success": False}
    assert str(episodes[0].prompt[-1]["content"]).startswith("left or right?")
    assert shown(episodes[0])[0] == "False", "blocking code runs in a thread"
    states = [turn.state for turn in episodes[1].turns]
    assert len({*states}) == 3
    assert states[:2] == [turn.state for turn in episodes[0].turns]


def test_the_move_may_be_the_reply_or_its_answer(tmp_path: Path) -> None:
    game = {"library": "./task.py:Doors", "act": "text"}
    episodes = played(tmp_path, game, ["wait", "right"], ["I wait. <answer>wait</answer>", "right"], script="said")
    assert [e.reward for e in episodes] == [0.25, 1.25]
    assert not episodes[0].tools


HOW = pytest.mark.parametrize(
    "how", [{}, {"act": "text"}, {"actions": ["wait", "left", "right", "slow"]}], ids=["call", "text", "named"]
)


@HOW
@pytest.mark.parametrize("name", ["Awaited", "OfOwn"])
def test_a_step_that_is_async_runs_in_the_event_loop(tmp_path: Path, how: dict[str, Any], name: str) -> None:
    game, script = {"library": f"./task.py:{name}", **how}, "said" if "act" in how else "moves"
    (episode,) = played(tmp_path, game, ["wait", "left"], script=script)
    assert shown(episode)[0] == "True"
    assert episode.reward == 1.25


@HOW
def test_steps_that_never_wait_end_with_the_time_of_the_episode(tmp_path: Path, how: dict[str, Any]) -> None:
    game, script = {"library": "./task.py:Awaited", **how}, "said" if "act" in how else "moves"
    (episode,) = played(tmp_path, game, ["slow"] * 100, script=script, limits={"episode_s": 0.3})
    assert (episode.status, episode.stop) == ("truncated", "wall")


def test_rewards_of_turns(tmp_path: Path) -> None:
    (episode,) = played(tmp_path, {"library": "./task.py:Doors", "turn_rewards": True}, ["wait", "left"])
    assert [turn.reward for turn in episode.turns] == [0.25, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Doors", "Awaited", "Odd", "Handed"])
def test_moves_that_crash_a_game_again_and_again_have_a_reward(tmp_path: Path, name: str) -> None:
    game, crashes = {"library": f"./task.py:{name}"}, ("crash", "quit", "nan", "inf")
    once = played(tmp_path, game, ["crash"], limits={"retries": 0})
    assert [episode.status for episode in once] == ["infra_error"]
    assert once[0].error is not None
    assert re.search("failed in step|step returned", once[0].error.message)
    for episode in played(tmp_path, game, *(["wait", each] for each in crashes), limits={"backoff_s": 0.0}):
        assert (episode.status, episode.stop, episode.attempt) == ("truncated", "tool_broken", 1)
        assert episode.reward == (0.25 if name in ("Doors", "Awaited") else 0.0), "the reward so far"


@pytest.mark.slow
def test_who_is_not_there_is_the_user(tmp_path: Path) -> None:
    game = {"library": "./task.py:Doors"}
    (broken,) = played(tmp_path / "c", {"library": "./task.py:broken"}, ["left"])
    assert broken.status == "user_error"
    assert broken.error is not None
    assert "no such game" in broken.error.message
    (unknown,) = played(tmp_path / "d", game, ["left"], game={"colour": 1})
    assert unknown.error is not None
    assert "colour" in unknown.error.message


def test_bad_moves_are_observations(tmp_path: Path) -> None:
    (episode,) = played(tmp_path, {"library": "./task.py:Doors"}, ["  ", "left", "left"])
    assert shown(episode)[0] == "Error: say a move"
    assert episode.reward == 1.0


@pytest.mark.slow
def test_gymnasium_with_named_and_numbered_actions(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="pip install 'agentrl-framework[games]'")
    lake = {
        "library": "gymnasium",
        "id": "FrozenLake-v1",
        "kwargs": {"is_slippery": False, "render_mode": "ansi"},
        "state": "unwrapped.s",
    }
    way = ["down", "down", "right", "right", "down", "right"]
    named = {**lake, "actions": ["left", "down", "right", "up"]}
    walked, drowned, back = played(tmp_path / "a", named, way, ["jump", "down", "right"], ["down", "up"])
    assert walked.reward == walked.components["success"] == 1.0
    assert "[S]FFF\nFHFH\nFFFH\nHFFG" in walked.prompt[-1]["content"]
    assert "F[H]FH" in shown(drowned)[-1]
    assert '["left", "down", "right", "up"]' in shown(drowned)[0]
    assert drowned.reward == 0.0
    assert drowned.turns[0].state == drowned.turns[1].state == back.turns[0].state
    numbers, wrong, long = played(tmp_path / "b", lake, ["1", "1", "2", "2", "1", "2"], ["4"], ["9" * 5000, "-1", "١"])
    assert long.status == "done"
    assert "there are: 0 to 3" in shown(long)[0]
    assert numbers.reward == 1.0
    assert "there are: 0 to 3" in shown(wrong)[0]


def test_a_random_agent_makes_the_moves_that_have_names(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="pip install 'agentrl-framework[games]'")
    game = {"library": "gymnasium", "id": "FrozenLake-v1", "actions": ["left", "down", "right", "up"]}
    episodes = played(tmp_path, game, *[["left"]] * 4, script="random")
    assert {call.outcome for e in episodes for turn in e.turns for call in turn.calls} == {"ok"}
    assert all(e.info["steps"] for e in episodes)


@pytest.mark.slow
def test_textarena_alone_and_against_an_opponent(tmp_path: Path) -> None:
    pytest.importorskip("textarena", reason="pip install 'agentrl-framework[games]'")
    guess = {"library": "textarena", "id": "GuessTheNumber-v0"}
    every = [f"[{k}]" for k in range(1, 21)]
    episodes = played(tmp_path / "a", guess, *[every] * 6)
    assert "between 1 and 20" in episodes[0].prompt[-1]["content"]
    assert len({e.info["steps"] for e in episodes}) > 1, "a number for each seed"
    for e in episodes:  # who runs out of turns is paid for a near miss, and has not won
        assert e.components["success"] == float(e.reward == 1.0)
    assert any(0 < (e.reward or 0) < 1 for e in episodes)
    again = played(tmp_path / "b", guess, *[every] * 6)
    assert [shown(e) for e in again] == [shown(e) for e in episodes]
    noughts = {"library": "textarena", "id": "TicTacToe-v0", "kwargs": {"players": 2}}
    first, second = played(tmp_path / "c", noughts, *[[f"[{k}]" for k in (4, 0, 8, 2, 6, 1, 3, 5, 7)]] * 2)
    assert "Player 1 placed their symbol" in shown(first)[0]
    assert {first.info["ended"], second.info["ended"]} == {True}
    (last,) = played(tmp_path / "d", {**noughts, "player": 1, "opponent": "./task.py:second"}, ["[0]", "[1]", "[2]"])
    assert "Player 0 placed their symbol (O) in cell 8" in last.prompt[-1]["content"]
    assert last.components["success"] == 0.0 or last.reward == 1.0


def test_openspiel(tmp_path: Path) -> None:
    pytest.importorskip("pyspiel", reason="pip install 'agentrl-framework[games]'")
    game = {"library": "openspiel", "id": "tic_tac_toe", "opponent": "./task.py:second"}
    (episode,) = played(tmp_path / "a", game, ["x(0,0)", "x(0,0)", "x(0,1)", "x(0,2)"])
    assert "Moves: x(0,0)" in episode.prompt[-1]["content"]
    assert "is no move now" in shown(episode)[1]
    assert episode.reward == episode.components["success"] == 1.0
    poker = played(tmp_path / "b", {"library": "openspiel", "id": "kuhn_poker"}, *[["Bet"]] * 12)
    cards = {e.prompt[-1]["content"].splitlines()[0] for e in poker}
    assert cards == {"0", "1", "2"}, "each sees its own card alone, another one by seed"
    assert {abs(e.reward or 0) for e in poker} == {1.0, 2.0}
    (simultaneous,) = played(tmp_path / "c", {"library": "openspiel", "id": "matrix_pd"}, ["x"])
    assert simultaneous.status == "user_error"


def test_pettingzoo(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo", reason="pip install 'agentrl-framework[games]'")
    pytest.importorskip("pygame", reason="pip install 'agentrl-framework[games]'")
    game = {"library": "pettingzoo", "id": "classic.tictactoe_v3", "opponent": "./task.py:second"}
    won, wrong = played(tmp_path, game, ["0", "1", "2"], ["9", "0", "9" * 5000])
    assert "Moves: 0, 1, 2, 3, 4, 5, 6, 7, 8" in won.prompt[-1]["content"]
    assert won.reward == won.components["success"] == 1.0
    assert [text.startswith("Error: ") for text in shown(wrong)] == [True, False, True]


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, told in (
        ({"library": "gymnasum"}, "gymnasium"),
        ({"library": "gymnasium", "act": "shout"}, "tool, or text"),
        ({"library": "gymnasium", "opponent": "me"}, "task.py"),
    ):
        with pytest.raises(RecipeError, match=told):
            Game(**settings)  # type: ignore[arg-type]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="pip install open-spiel"):
        Game("openspiel")


def test_a_game_that_its_library_does_not_have_is_the_users_error(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="pip install 'agentrl-framework[games]'")
    (episode,) = played(tmp_path, {"library": "gymnasium", "id": "NoSuchGame-v0"}, ["1"])
    assert episode.status == "user_error"
    assert episode.error is not None
    assert "NoSuchGame" in episode.error.message


def test_games_draw_from_generators_of_their_own() -> None:
    before, one, two = random.getstate(), OwnRandom(), OwnRandom()
    drawn: dict[OwnRandom, list[float]] = {one: [], two: []}
    for each in (one, two):
        with each:
            each.seed(7)
    for _ in range(3):
        for each, numbers in drawn.items():
            with each:
                numbers.append(random.random())
    assert drawn[one] == drawn[two]
    assert len({*drawn[one]}) == 3
    assert random.getstate() == before
