"""Methods that act in what they see: rooms that they furnish, videos that they look into."""

from __future__ import annotations

from typing import Any

from agentrl.chat.formats.json_calls import HermesParser
from agentrl.config.recipe import Recipe
from agentrl.rollouts.builder import build
from agentrl.training.stages.stage import stages_of
from agentrl.types.episode import Episode, Turn
from agentrl.types.task import Task
from tests.methods.curricula import stages_learned
from tests.methods.proofs import Method, Run
from tests.methods.rewards import component
from tests.methods.seeing import rewards
from tests.rewards.make import make_episode, turn

ROOM = Task.of("r", [], walls={"bed": "north", "desk": "west", "lamp": "east"})
VIDEO = Task.of(
    "v", [], at=6, coat="red", floor=[200, 200, 200], scores=[1, 1, 1, 1, 1, 3, 5, 3], shown="frames"
)  # fmt: skip
"""A video of eight frames, of which 0 and 4 are shown at first."""


def played(recipe: Recipe, task: Task, *texts: str) -> Episode:
    """The episode of these replies in the environment of a recipe, until that ends it."""
    env: Any = build(recipe).make_tools()[0]
    env.open(task, None)
    turns: list[Turn] = []
    for text in texts:
        turns.append(turn(text=text))
        if env.respond(HermesParser().parse(text, [])).done:
            break
    return make_episode(task, *turns, info=env.info)


def furnished(recipe: Recipe) -> list[Any]:
    """The layouts of rooms that get four replies, and the rewards of such rooms."""

    def layout(bed: str, desk: str, lamp: str) -> str:
        return f'<think>So.</think><answer>{{"bed": {bed}, "desk": {desk}, "lamp": {lamp}}}</answer>'

    good, outside = layout("[0, 0]", "[0, 2]", "[3, 0]"), layout("[0, 0]", "[0, 2]", "[4, 0]")
    covered, other = layout("[0, 0]", "[0, 0]", "[3, 0]"), layout("[0, 0]", "[2, 2]", "[3, 0]")
    short = '<think>So.</think><answer>{"bed": [0, 0]}</answer>'
    ways = ([good] * 4, [outside, good, good, good], [good, outside, good], [covered] * 3, [other] * 3,
            [short, "<think>So.</think><answer>bed</answer>", "bed"])  # fmt: skip
    made = [played(recipe, ROOM, *way) for way in ways]
    return [len(made[0].turns), rewards(recipe, *made)]


def detected(recipe: Recipe) -> list[Any]:
    """The look of the frames, stage by stage; the frames of an episode, turn by turn; the rewards of several."""
    air = stages_of(recipe)[-1].recipe

    def said(scores: str = "", clip: str = "", answer: str = "") -> str:
        return f"<score>{scores}</score><think>So.</think><clip>{clip}</clip><answer>{answer}</answer>"

    found, guess = said("6: 5", answer="red"), said(answer="red")
    ways = ([said(clip="6"), found], [said(clip="5-7"), said("5: 3", answer="red")], [said("4: 3", clip="6"), found],
            [guess], [said(clip="6"), said("6: 5", answer="blue")], [said(clip="6", answer="red")])  # fmt: skip
    made = [played(air, VIDEO, *way) for way in ways]
    stages = [(getattr(each.settings, "tasks", None) or each.recipe.tasks).args["shown"] for each in stages_of(recipe)]
    return [stages, made[1].info["shown"], rewards(air, *made)]


def varied(run: Run) -> None:
    """Asserts that every stage changed the weights, and that the rewards of some groups varied."""
    stages_learned(run)
    shares = run.metric("zero_variance_groups")
    assert len(shares) == 2
    assert min(shares) < 1


METHODS = [
    # A score: form / 2 + seen - (overlap + misplaced) / 5; of three, the first weighs 1, the others .9 and .81. A lamp
    # outside: 1 / 2 + 2 / 3 - 1 / 15. A desk on the bed: 1 / 2 + 5 / 6 - 1 / 15. A desk off its wall: as the lamp. One
    # piece, no JSON, and no answer: forms of .5, .1 and 0.
    Method(
        "meta-spatial", component("seen"), furnished, [3, [1.5, 1.352, 1.367, 1.267, 1.1, 0.109]],
        sized=(
            "tasks.args.n=8", "stages.0.sft={script: careless, episodes: 8, steps: 100, batch: 4, lr: 3.0e-3}",
            "stages.1.rl.train.iterations=2",
        ),
        warmed=None, learns=varied,
    ),
    # Right 1 + named + fetched + form / 2: all; context in place of evidence (1 of 2 frames named, 2 of 2 fetched);
    # evidence where there is none (1 of 2 turns); a guess; a wrong answer; a fetch and an answer in one reply.
    Method(
        "conan", component("named"), detected,
        [["words", "both", "frames", "frames"], [[0, 4], [5, 7]], [3.5, 3.0, 3.0, 1.5, 0.5, 2.0]],
        sized=("tasks.args.n=8",),
        small=(
            *(
                f"stages.{k}.sft={{script: oracle, episodes: 8, steps: 20, batch: 4, lr: 3.0e-3,"
                f" tasks: {{source: ./task.py:videos, args: {{n: 8, shown: {shown}}}}}}}"
                for k, shown in enumerate(("words", "both"))
            ),
            "stages.2.sft={script: oracle, episodes: 8, steps: 60, batch: 4, lr: 3.0e-3}",
            "stages.3.rl.train.iterations=2",
        ),
        warmed=None, learns=varied,
    ),
]  # fmt: skip
