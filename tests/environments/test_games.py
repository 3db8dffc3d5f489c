"""A few games of each recipe: the oracle wins them, who moves at random seldom, and who does not play never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl.api.rollout import rollout
from agentrl.api.train import train
from agentrl.config.loader import load_recipe
from agentrl.curriculum.task_source import load_tasks
from agentrl.store import RunDir, check
from agentrl.types.episode import Episode
from tests.environments.packages import needs

RECIPES = Path(__file__).parents[2] / "recipes"
SEEDS = "agentrl.tools.builtin.games.tasks:seeds"

GAMES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # package, few games, others that are held out
    "textworld-express": (
        "textworld_express",
        {"game": ["coin", "simonsays", "sorting"], "n": 6},
        {"game": ["coin", "sorting"], "n": 4, "split": "test"},
    ),
    "scienceworld": (
        "scienceworld",
        {"task": ["lifespan-longest-lived", "lifespan-shortest-lived"], "n": 2},
        {"task": ["find-plant", "lifespan-shortest-lived"], "n": 4, "split": "test"},
    ),
    "babyai": ("minigrid", {"level": ["GoToLocal", "PickupLoc"], "n": 6}, {"n": 4, "held_out": True}),
    "games": ("textarena", {"kinds": ["guess", "lake", "mastermind"], "n": 6}, {"n": 4, "held_out": True}),
}

LESS: dict[str, dict[str, Any]] = {"scienceworld": {"concurrency": 1, "agent.max_turns": 8}}  # Java starts slowly


def played(folder: Path, recipe: str, script: str, args: dict[str, Any]) -> list[Episode]:
    package, _, _ = GAMES[recipe]
    needs(package)
    overrides = {"tasks.args": args, "credit": {"use": "gigpo"}, **LESS.get(recipe, {})}
    run = rollout(RECIPES / recipe, args["n"], script=script, overrides=overrides, out=folder / script, reporters=())
    return list(run.dir.episodes())


@pytest.mark.slow
@pytest.mark.family("environments")
@pytest.mark.parametrize("recipe", GAMES)
def test_the_oracle_wins_and_who_does_not_play_does_not(tmp_path: Path, recipe: str) -> None:
    _, few, _ = GAMES[recipe]
    solved = played(tmp_path, recipe, "oracle", few)
    assert [e.task.id for e in solved if e.components["success"] != 1.0] == []
    assert all(len({turn.state for turn in e.turns if turn.calls}) > 1 for e in solved if len(e.turns) > 2)
    for script, most in (("random", 0.7), ("empty", 0), ("junk", 0)):
        episodes = played(tmp_path, recipe, script, few)
        assert {e.status for e in episodes} <= {"done", "truncated"}
        assert sum(e.components["success"] or 0 for e in episodes) <= most * len(episodes), script


@pytest.mark.parametrize("recipe", GAMES)
def test_held_out_games_are_of_other_seeds(recipe: str) -> None:
    _, few, held_out = GAMES[recipe]
    settings = load_recipe(str(RECIPES / recipe))
    sets = [load_tasks(settings.tasks.model_copy(update={"args": args}), settings.base, 0) for args in (few, held_out)]
    assert [len(each) for each in sets] == [few["n"], held_out["n"]]
    assert not {task.seed for task in sets[0].tasks} & {task.seed for task in sets[1].tasks}


@pytest.mark.slow
@pytest.mark.family("environments")
@pytest.mark.parametrize(
    ("game", "script"),
    [
        ({"id": "Nim-v0"}, "oracle"),
        ({"id": "Nim-v0"}, "random"),
        ({"id": "Nim-v0"}, "junk"),
        ({"id": "KuhnPoker-v0"}, "junk"),  # who begins is drawn
        ({"id": "TicTacToe-v0", "kwargs": {"players": 2}}, "empty"),
    ],
)
def test_the_policy_takes_all_seats_and_each_gets_its_own_score(
    tmp_path: Path, game: dict[str, Any], script: str
) -> None:
    tasks = {"source": SEEDS, "args": {"n": 6, "games": {"game": game}}}
    run = rollout(
        RECIPES / "games" / "self-play.yaml", 6, script=script, overrides={"tasks": tasks}, out=tmp_path, reporters=()
    )
    assert check(tmp_path).ok
    for episode in run.dir.episodes():
        assert episode.status == "done", episode.error
        scores = episode.info["scores"]
        assert sorted(scores) in ([-1, 1], [0, 0])
        if script == "oracle":
            assert scores == [1, -1], "who begins wins with piles of 3, 4 and 5"
        for seat, score in enumerate(scores):
            turns = [turn for turn in episode.turns if turn.agent == f"player {seat}"]
            assert {turn.context for turn in turns} <= {"main" if seat == 0 else f"player {seat}"}
            assert {episode.outcome_of(turn) for turn in turns} <= {score}


@pytest.mark.slow
@pytest.mark.family("environments")
def test_earlier_selves_take_the_other_seats(tmp_path: Path) -> None:
    overrides = {
        "model": {"scratch": {"hidden": 16, "layers": 1, "heads": 2, "vocab_size": 280, "max_context": 2048}},
        "tasks": {"source": SEEDS, "args": {"games": {"kuhn": {"id": "KuhnPoker-v0"}}}},  # who begins is drawn
        "agent.others": "past",
        "policies": {"past": {"checkpoint": {"every": 1, "last": 2}}},
        "train": {"iterations": 2, "groups": 4, "group_size": 2, "checkpoint_every": 1},
        "sampling.max_tokens": 8,
        "eval": None,
    }
    train(RECIPES / "games" / "self-play.yaml", overrides=overrides, out=tmp_path / "run", reporters=())
    assert check(tmp_path / "run").ok
    with RunDir.read(tmp_path / "run") as run:
        contexts = [context for episode in run.episodes() for context in episode.contexts.values()]
    assert {context.policy for context in contexts} == {"past"}
