"""gem's environments through the `game` tool: the same texts and rewards as in a loop of gem's own."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.tools.builtin.games.game import Game
from agentrl.tools.builtin.games.gem import EVALUATED, Gem
from agentrl.tools.builtin.games.libraries import Wanted, maker
from agentrl.tools.builtin.games.play import Step
from agentrl.types.errors import RecipeError, TaskError
from tests.tools.builtin.games.test_game import played, shown

SEEDS = range(4)


def guess(env: Any) -> Iterator[str]:
    """Wrong numbers first."""
    wrong = [number for number in range(env.min_number, env.max_number + 1) if number != env.game_number]
    yield from map(str, [*wrong[:2], env.game_number])


def crack(env: Any) -> Iterator[str]:
    """The code; before it one that has half of it in place."""
    first, second = env.game_code
    other = next(number for number in range(1, env.num_numbers + 1) if number not in (first, second))
    yield from (f"{first} {other}", f"{first} {second}")


def sweep(env: Any) -> Iterator[str]:
    """The first move lays the mines. gem ends the game at the last cell without a mine if all mines have a flag."""
    yield "reveal 0 0"
    cells = [(row, column) for row in range(env.rows) for column in range(env.cols)]
    yield from (f"flag {row} {column}" for row, column in cells if env.grid[row][column] == -1)
    for row, column in cells:
        if env.grid[row][column] != -1 and not env.revealed[row][column]:
            yield f"reveal {row} {column}"


def fill(env: Any) -> Iterator[str]:
    """What is missing; one number is wrong."""
    for row in range(env.scale):
        for column in range(env.scale):
            if env.board[row][column] == 0:
                if row == column:
                    yield f"{row + 1} {column + 1} {env.full_grid[row][column] % env.scale + 1}"
                yield f"{row + 1} {column + 1} {env.full_grid[row][column]}"


def carry(env: Any) -> Iterator[str]:
    """The seven moves of three disks."""
    yield from ("A C", "A B", "C B", "A C", "B A", "B C", "A C")


def answer(env: Any) -> Iterator[str]:
    """The answer of the data set."""
    yield str(env.data["answer"])


SOLVERS: dict[str, Callable[[Any], Iterator[str]]] = {
    "game:GuessTheNumber-v0-easy": guess,
    "game:Mastermind-v0-easy": crack,
    "game:Minesweeper-v0-easy": sweep,
    "game:Sudoku-v0-easy": fill,
    "game:TowerofHanoi-v0-easy": carry,
    "rg:letter_counting": answer,
    "rg:leg_counting": answer,
}
DRAWN: dict[str, Callable[[random.Random], str]] = {
    "game:GuessTheNumber-v0-random": lambda rng: str(rng.randint(1, 20)),
    "game:Mastermind-v0-hard": lambda rng: " ".join(str(rng.randint(1, 8)) for _ in range(4)),
    "game:Minesweeper-v0-random": lambda rng: (
        f"{rng.choice(['reveal', 'flag'])} {rng.randint(0, 8)} {rng.randint(0, 8)}"
    ),
    "game:Sudoku-v0-random": lambda rng: " ".join(str(rng.randint(1, 4)) for _ in range(3)),
    "game:TowerofHanoi-v0-hard": lambda rng: " ".join(rng.choices("ABC", k=2)),
    "game:FifteenPuzzle-v0-hard": lambda rng: rng.choice(["up", "down", "left", "right"]),
    "game:Game2048-v0-hard": lambda rng: rng.choice(["up", "down", "left", "right"]),
    "game:Sokoban-v0-easy": lambda rng: rng.choice(["up", "down", "left", "right"]),
}
"""Random moves. Some of these games draw while they are played."""


def by_gem(id: str, seed: int, player: Callable[[Any], Iterator[str]]) -> dict[str, list[Any]]:
    """A game in gem's own loop: moves, texts and rewards."""
    import gem

    env = gem.make(id)
    seen, info = env.reset(seed=seed)
    found: dict[str, list[Any]] = {"moves": [], "texts": [seen], "boards": [info.get("suffix", "")], "rewards": []}
    for word in player(env):
        move = f"I say \\boxed{{{word}}}"
        seen, reward, terminated, truncated, info = env.step(move)
        found["moves"].append(move)
        found["texts"].append(seen)
        found["boards"].append(info.get("suffix", ""))
        found["rewards"].append(float(reward))
        found["ends"] = [terminated, truncated]
        if terminated or truncated:
            break
    return found


def compared(folder: Path, id: str, games: list[dict[str, list[Any]]], **settings: Any) -> list[Any]:
    """The episodes with the moves of `games`, which are those of seeds 0, 1, ...; texts and rewards are equal."""
    script = "said" if settings.get("act") == "text" else "moves"
    game = {"library": "gem", "id": id, "turn_rewards": True, **settings}
    episodes = played(folder, game, *[one["moves"] for one in games], script=script)
    for episode, one in zip(episodes, games, strict=True):
        assert episode.status == "done", episode.error
        assert [turn.reward for turn in episode.turns] == one["rewards"]
        assert episode.info["return"] == pytest.approx(sum(one["rewards"]))
        texts = [str(episode.prompt[-1]["content"]), *shown(episode)]
        for text, seen, board in zip(texts, one["texts"][:-1], one["boards"][:-1], strict=False):
            assert seen.strip("\n") in text
            assert board.strip("\n") in text, "the board, which gem keeps beside the observation"
    return episodes


@pytest.mark.slow
@pytest.mark.parametrize("id", SOLVERS)
def test_who_plays_right_wins_what_gem_gives(tmp_path: Path, id: str) -> None:
    games = [by_gem(id, seed, SOLVERS[id]) for seed in SEEDS]
    for settings in ({}, {"act": "text"}):
        episodes = compared(tmp_path / settings.get("act", "tool"), id, games, **settings)
        assert [e.components["success"] for e in episodes] == [1.0] * len(SEEDS)
        assert [e.info["return"] for e in episodes] == pytest.approx([1.0] * len(SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("id", DRAWN)
def test_who_moves_at_random_gets_what_gem_gives(tmp_path: Path, id: str) -> None:
    def player(seed: int) -> Callable[[Any], Iterator[str]]:
        rng = random.Random(seed)
        return lambda env: (DRAWN[id](rng) for _ in range(100))

    games = [by_gem(id, seed, player(seed)) for seed in SEEDS]
    for e, one in zip(compared(tmp_path, id, games), games, strict=True):
        assert e.info["ended"]
        assert e.components["success"] == float(sum(one["rewards"]) > 0.999)


@pytest.mark.parametrize("id", SOLVERS)
@pytest.mark.slow  # the first imports gem
def test_what_is_no_move_loses_and_a_seed_is_a_game(tmp_path: Path, id: str) -> None:
    game = {"library": "gem", "id": id}
    once, again = (played(tmp_path / str(k), game, *[["no idea"]] * 4) for k in range(2))
    for e in once:
        assert (e.status, e.info["ended"], e.components["success"]) == ("done", True, 0.0)
        assert e.info["return"] == (0.0 if id.startswith("rg:") else -0.1)
    openings = [str(e.prompt[-1]["content"]) for e in once]
    assert openings == [str(e.prompt[-1]["content"]) for e in again]


def test_who_runs_out_of_turns_has_not_won_although_it_is_paid_for_a_part(tmp_path: Path) -> None:
    def nearly(env: Any) -> Iterator[str]:
        yield from (str(env.game_number % env.max_number + 1) for _ in range(20))

    def there_and_back(env: Any) -> Iterator[str]:
        yield from ["A C", "A B", *["B A", "A B"] * 4]

    for id, player in {"game:GuessTheNumber-v0-easy": nearly, "game:TowerofHanoi-v0-easy": there_and_back}.items():
        games = [by_gem(id, seed, player) for seed in SEEDS]
        assert {tuple(one["ends"]) for one in games} == {(True, True)}
        episodes = compared(tmp_path / player.__name__, id, games)
        assert all(0 < e.info["return"] < 1 for e in episodes)
        assert [e.components["success"] for e in episodes] == [0.0] * len(SEEDS)


def test_equal_boards_are_equal_states(tmp_path: Path) -> None:
    hanoi = {"library": "gem", "id": "game:TowerofHanoi-v0-easy", "state": "get_task_suffix"}
    there, straight = played(
        tmp_path, hanoi, *[[rf"\boxed{{{m}}}" for m in way] for way in (("A C", "C A", "A B"), ("A B", "A C"))]
    )
    states = [turn.state for turn in there.turns]
    assert states[0] == states[2] == straight.turns[0].state
    assert states[1] != states[0]


def test_games_side_by_side_draw_nothing_from_each_other() -> None:
    """gem draws from the global generators, also as it makes an environment."""
    make, before = maker("gem"), random.getstate()
    moves = [rf"\boxed{{{move}}}" for move in ("up", "left", "down", "right") * 3]

    def boards(others: bool) -> list[str]:
        play = make(Wanted("game:Game2048-v0-easy"))
        texts = [play.reset(2**63 - 5)]
        for move in moves:
            if others:
                make(Wanted("game:Mastermind-v0-easy")).reset(3)
            found = play.step(move)
            assert isinstance(found, Step)
            texts.append(found.text)
        return texts

    assert boards(others=False) == boards(others=True)
    assert random.getstate() == before


@pytest.mark.slow
def test_the_package_leaves_logging_as_it_was() -> None:
    code = """
import logging, sys
from agentrl.tools.builtin.games.libraries import Wanted, maker
from agentrl.tools.builtin.games.play import Step
before = logging.getLogger().level, [*logging.getLogger().handlers]
maker("gem")(Wanted("game:TowerofHanoi-v0-easy"))
sys.exit("gem" not in sys.modules or before != (logging.getLogger().level, logging.getLogger().handlers))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow  # imports gem anew
def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = maker("gem")
    with pytest.raises(ValueError, match="not found in registry"):
        make(Wanted("game:Chess-v0"))
    (episode,) = played(tmp_path, {"library": "gem", "id": "game:Chess-v0"}, ["e4"])
    assert episode.status == "user_error"
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    monkeypatch.setattr("nltk.download", lambda name: False)
    monkeypatch.setattr("nltk.data.path", [str(tmp_path)])
    with pytest.raises(TaskError, match=r"nltk\.downloader words"):
        make(Wanted("game:Wordle-v0-easy"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        RecipeError, match="pip install --no-deps --ignore-requires-python gem-llm && pip install reasoning-gym"
    ):
        Game("gem")


EVALUATES = ["rg:n_queens", "rg:spiral_matrix", "rg:countdown", "rg:coin_flip", "math:GSM8K", "code:Taco8k"]
HANDED = re.compile(r"(?<![\w.])eval\(answer|(?:sympy|sp)\.parse_expr\(answer|[ (]parse_expr\(answer|Fraction\(answer")


@pytest.mark.parametrize("id", EVALUATES)
def test_games_that_let_python_evaluate_what_the_model_writes_are_refused(id: str) -> None:
    """`\\boxed{__import__("os").system("...")}` would run here."""
    with pytest.raises(TaskError, match=f"{id} lets Python evaluate what the model writes"):
        Gem(id, {})


@pytest.mark.slow
def test_no_other_game_of_gem_evaluates_what_the_model_writes() -> None:
    """A new version of the packages may bring more of them."""
    import gem.envs
    import reasoning_gym

    folder = Path(reasoning_gym.__file__).parent
    found = {path.stem for path in folder.rglob("*.py") if HANDED.search(path.read_text())}
    assert found
    assert all(f"rg:{name}".startswith(EVALUATED) for name in found)
    assert gem.envs
