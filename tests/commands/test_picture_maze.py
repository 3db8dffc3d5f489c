"""recipes/picture-maze: a picture says everything, who does not walk is paid nothing, a policy that sees trains."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.registry.references import load_object
from agentrl.store.run_dir import RunDir
from agentrl.types.parts.content import image_parts
from agentrl.types.task import Task
from tests.command import agentrl, sets
from tests.sound import assert_sound, played

pytest.importorskip("PIL", reason="pip install 'agentrl-framework[vision]'")

RECIPE = Path(__file__).parents[2] / "recipes" / "picture-maze"
load: Callable[[str], Any] = functools.partial(load_object, base=RECIPE)


@functools.cache
def tasks(held_out: bool = False) -> list[Task]:
    return list(load("./task.py:mazes")(n=200, held_out=held_out))


@pytest.mark.slow
@pytest.mark.family("environments")
@pytest.mark.parametrize(
    ("script", "least", "most"), [("oracle", 1, 1), ("random", 0, 0.4), ("empty", 0, 0), ("junk", 0, 0)]
)
def test_who_walks_the_way_is_paid(tmp_path: Path, script: str, least: float, most: float) -> None:
    rooms = "credit=gigpo"  # which compares turns in one room: their states are stored
    episodes = [*played(RECIPE, 64, script, tmp_path / "run", rooms).whole_episodes()]
    assert least <= sum(episode.reward or 0.0 for episode in episodes) / 64 <= most
    for episode in episodes if script == "oracle" else []:
        assert 2 <= len(episode.turns) <= 4
        for turn, following in itertools.pairwise(episode.turns):
            assert turn.text in episode.task.data["doors"][int(turn.state)]
            assert turn.state != following.state
            assert turn.rewards == {"nearer": 1.0}
            assert len(list(image_parts(turn.observations))) == 1


def test_held_out_mazes_are_others() -> None:
    seen, held_out = ({repr(task.data) for task in tasks(chosen)} for chosen in (False, True))
    assert not seen & held_out
    assert list(load("./task.py:mazes")(n=20)) == tasks()[:20]
    assert list(load("./task.py:mazes")(n=20, seed=1)) != tasks()[:20]


def test_a_room_s_pixels_say_its_walls_the_player_and_the_goal() -> None:
    """What a token of the tower sees: the same rooms look the same, others differ."""
    looks: dict[bytes, set[tuple[str, bool, bool]]] = {}
    for task in tasks()[:50]:
        env = load("./task.py:Maze")()
        env.open(task, None)
        picture = env.picture()
        for at, doors in enumerate(task.data["doors"]):
            left, top = at % 3 * 8, at // 3 * 8
            seen = picture.crop((left, top, left + 8, top + 8)).tobytes()
            looks.setdefault(seen, set()).add((" ".join(doors), at == env.at, at == task.data["goal"]))
    assert {len(meanings) for meanings in looks.values()} == {1}
    assert len({repr(meanings) for meanings in looks.values()}) == len(looks)


@pytest.mark.slow
@pytest.mark.family("environments")
def test_a_policy_that_sees_is_warm_started_and_trained(tmp_path: Path) -> None:
    """Demonstrations, whose images are one token each, and the policy's episodes are in one run."""
    stages = (
        "stages=[{name: look, sft: {script: oracle, episodes: 32, steps: 70, batch: 16, lr: 5e-3}}, "
        "{name: walk, rl: {train: {iterations: 2}}}]"
    )
    small = [stages, "train.groups=2", "train.group_size=4", "eval.episodes=8"]
    agentrl("train", "picture-maze", "--out", "run", *sets(*small), cwd=tmp_path)
    with RunDir.read(tmp_path / "run") as run:
        said = [turn.text.strip() for episode in run.episodes(split="train") for turn in episode.turns]
        lines = [line for line in run.metrics() if line["split"] == "train"]
        assert run.info["processor"]["use"] == "qwen2_vl"
        assert run.info["finished"]
    assert sum(text in ("north", "east", "south", "west") for text in said) > 0.5 * len(said) > 0
    assert len(lines) == 2
    assert max(line["mismatch_max"] for line in lines) < 1e-4
    assert_sound(tmp_path / "run")
