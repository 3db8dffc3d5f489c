"""Steps a second of environments beside their packages' own loops: `python -m benchmarks.environments [NAME ...]`.

The oracle of a recipe plays once; `--engine replay:RUN` says its turns again, one episode at a time. Then the same
moves go to the package's own environment in a bare loop, without checks, record and state keys. If the package gives no
text, the loop makes it. The two take turns. Figures of each recipe:

- `added_ms`: what the runner adds to a step: the call's checks, a thread, the observation;
- `tools`: time that the runner waits for an environment's steps / time of the package's own steps;
- `rollout`: time of the whole rollout but for opening (prompts, parsing, tokens, states, grading) / the same;
- episodes and steps a second with `--at-once` episodes, with the start and the record, and how many failed.

The last line is JSON. An environment whose package is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from agentrl.api.rollout import rollout
from agentrl.registry.references import load_object
from agentrl.types.episode import Episode
from agentrl.types.task import Task

RECIPES = Path(__file__).parents[1] / "recipes"

Calls = list[tuple[str, dict[str, Any]]]
"""Names and arguments of an episode's calls."""
Bare = Callable[[Task, Calls], Iterator[None]]
"""Opens the package's environment of a task before the first item, then makes a step for each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(ARMS)}")
    parser.add_argument("--episodes", type=int, default=32, help="of each repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=256)
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in ARMS]:
        parser.error(f"there is no {unknown[0]!r}; there are: {', '.join(ARMS)}")
    results = {}
    for name in given.names or ARMS:
        if importlib.util.find_spec(ARMS[name].package) is None:
            print(f"{name} is left out: {ARMS[name].package} is not installed", flush=True)
            continue
        results[name] = compare(ARMS[name], given.episodes, given.repeats, given.at_once)
        print(name, json.dumps(results[name]), flush=True)
    Console(width=120).print(table(results))
    print(json.dumps({"environments": results, "cores": os.cpu_count(), "load": os.getloadavg()[0]}))


# --- packages' own environments -------------------------------------------------------------------------------------


def babyai(task: Task, calls: Calls) -> Iterator[None]:
    """MiniGrid's `reset` and `step`, and the recipe's words for what it gives: numbers of cells."""
    import gymnasium
    import minigrid  # noqa: F401  # it adds its levels
    from minigrid.envs.babyai.core import roomgrid_level

    vars(roomgrid_level)["print"] = lambda *words: None
    moves = ("left", "right", "forward", "pickup", "drop", "toggle")
    in_words = load_object("./babyai/task.py:in_words", RECIPES)
    with closing(gymnasium.make(task.data["game"]["kwargs"]["level"])) as env:
        env.reset(seed=task.seed)
        for _, arguments in calls:
            yield
            seen = env.step(moves.index(arguments["action"]))[0]
            in_words(seen["image"].tolist())


def textworld_express(task: Task, calls: Calls) -> Iterator[None]:
    """One TextWorldExpressEnv for all games."""
    env, kwargs = _express(), task.data["game"]["kwargs"]
    env.load(kwargs["game"], kwargs["params"])
    env.reset(seed=task.seed, gameFold=kwargs["fold"])
    for _, arguments in calls:
        yield
        env.step(arguments["action"])


@functools.cache
def _express() -> Any:
    from py4j.java_gateway import launch_gateway
    from textworld_express import TextWorldExpressEnv, textworld_express

    with patch.object(textworld_express, "launch_gateway", launch_gateway):  # not in a process of the recipe
        return TextWorldExpressEnv(envStepLimit=10**9)


def textworld(task: Task, calls: Calls) -> Iterator[None]:
    """The game's file, with the same information asked for."""
    import textworld as package

    kwargs = task.data["game"]["kwargs"]
    made = load_object("./textworld/story.py:made", RECIPES)
    path = made(kwargs["kind"], kwargs["settings"], task.seed, kwargs["detailed"])
    names = ("admissible_commands", "won", "lost", "score", "max_score", "policy_commands")
    with closing(package.start(str(path), package.EnvInfos(**dict.fromkeys(names, True)))) as env:
        env.reset()
        for _, arguments in calls:
            yield
            env.step(arguments["action"])


def chinook(task: Task, calls: Calls) -> Iterator[None]:
    """Python's sqlite3, as many rows as the tool shows."""
    import sqlite3

    with closing(sqlite3.connect(f"file:{task.data['database']}?mode=ro", uri=True)) as shop:
        for name, arguments in calls:
            if name == "sql":
                yield
                shop.execute(arguments["query"]).fetchmany(100)


def bfcl(task: Task, calls: Calls) -> Iterator[None]:
    """The function of the package that makes the calls of its own runs."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call as execute

    entry = load_object("./bfcl/backend.py:entry_of", RECIPES)(task.id)
    # It keeps the APIs by the name of the model and of the entry.
    given = (entry["initial_config"], entry["involved_classes"], f"bare{next(_numbers)}", task.id, "long" in task.id)
    execute([], *given)
    for name, arguments in calls:
        yield
        execute([f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"], *given)


_numbers = itertools.count()


@dataclass(frozen=True)
class Arm:
    """A recipe, and its package's own loop."""

    recipe: str
    package: str
    bare: Bare
    agent: str = "oracle"


ARMS = {
    "babyai": Arm("babyai", "minigrid", babyai),
    "textworld-express": Arm("textworld-express", "textworld_express", textworld_express),
    "textworld": Arm("textworld", "textworld", textworld),
    "sql-chinook": Arm("sql-chinook", "chinook", chinook, agent="looked_up"),
    "bfcl": Arm("bfcl", "bfcl_eval", bfcl),
}


# --- measurements ---------------------------------------------------------------------------------------------------


def compare(arm: Arm, episodes: int, repeats: int, at_once: int) -> dict[str, float]:
    """Medians over the repeats; the first rollout, which imports and makes games, does not count."""
    with tempfile.TemporaryDirectory() as folder:
        return _compared(arm, episodes, repeats, at_once, Path(folder))


def _compared(arm: Arm, episodes: int, repeats: int, at_once: int, folder: Path) -> dict[str, float]:
    told = folder / "told"
    played(arm, max(episodes, at_once), 8, told, agent=arm.agent)
    played(arm, episodes, 1, folder / "first", engine=f"replay:{told}")
    ours, theirs, whole = [], [], []
    for number in range(repeats):
        found, _ = played(arm, episodes, 1, folder / f"{number}", engine=f"replay:{told}")
        steps = sum(len(calls_of(episode)) for episode in found)
        ours.append(sum(turn.tools_s for episode in found for turn in episode.turns) / steps)
        whole.append(sum(e.timings["total"] - e.timings["open"] for e in found) / steps)
        theirs.append(alone(arm, found) / steps)
    many, seconds = played(arm, at_once, at_once, folder / "many", engine=f"replay:{told}")
    return {
        "package_ms": round(statistics.median(theirs) * 1e3, 4),
        "tools_ms": round(statistics.median(ours) * 1e3, 4),
        "rollout_ms": round(statistics.median(whole) * 1e3, 4),
        "added_ms": round((statistics.median(ours) - statistics.median(theirs)) * 1e3, 4),
        "tools": round(statistics.median(ours) / statistics.median(theirs), 2),
        "rollout": round(statistics.median(whole) / statistics.median(theirs), 2),
        "at_once": at_once,
        "failed": sum(not episode.scored for episode in many),
        "episodes_per_s": round(at_once / seconds, 1),
        "steps_per_s": round(sum(len(calls_of(episode)) for episode in many) / seconds, 1),
    }


def played(arm: Arm, episodes: int, at_once: int, out: Path, **who: str) -> tuple[list[Episode], float]:
    """Episodes, and seconds with the start and the record."""
    overrides = [f"concurrency={at_once}", f"tasks.args.n={episodes}"]
    began = time.perf_counter()
    run = rollout(RECIPES / arm.recipe, episodes, overrides=overrides, out=out, reporters=(), **who)
    seconds = time.perf_counter() - began
    return list(run.dir.episodes()), seconds


def calls_of(episode: Episode) -> Calls:
    """What was called, without the answer that ends an episode."""
    calls = (call for turn in episode.turns for call in turn.calls)
    return [(call.name, dict(call.arguments)) for call in calls if call.name != "answer"]


def alone(arm: Arm, episodes: Sequence[Episode]) -> float:
    """Seconds of the package's own steps."""
    seconds = 0.0
    for episode in episodes:
        loop = arm.bare(episode.task, calls_of(episode))
        next(loop, None)
        began = time.perf_counter()
        for _ in loop:
            pass
        seconds += time.perf_counter() - began
    return seconds


def table(results: dict[str, dict[str, float]]) -> Table:
    """A line for each environment."""
    columns = [
        "package_ms",
        "tools_ms",
        "added_ms",
        "rollout_ms",
        "tools",
        "rollout",
        "episodes_per_s",
        "steps_per_s",
        "failed",
    ]
    out = Table("environment", *(name.replace("_", " ") for name in columns))
    for name, figures in results.items():
        out.add_row(name, *(f"{figures[column]:g}" for column in columns))
    return out


if __name__ == "__main__":
    main()
