"""Methods of policies that see screens and pictures."""

from __future__ import annotations

from typing import Any

from agentrl.config.recipe import Recipe
from agentrl.training.stages.stage import stages_of
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from tests.methods.curricula import stages_learned
from tests.methods.played import planned
from tests.methods.proofs import Method, Run
from tests.methods.rewards import SCREEN, SCREENS, component, scored
from tests.rewards.make import call, make_episode, turn

CLICK = Task.of("s", "Click on OK.", actions=[{"type": "left_click", "box": [10, 20, 30, 40]}], box=[10, 20, 30, 40])
SCROLL = Task.of("d", "Scroll down.", actions=[{"type": "scroll", "direction": "down"}], box=None)
PLACE = Task.of("p", "Where is OK?", box=[0, 0, 10, 10], size=[30, 40])


def rewards(recipe: Recipe, *made: Episode) -> list[float | None]:
    """The rewards of episodes, each of a group of its own."""
    return [None if each.reward is None else round(each.reward, 3) for one in made for each in scored(recipe, [one])]


def phases(recipe: Recipe) -> list[float | None]:
    """The rewards of steps that look, think and act."""
    hit, missed = call("left_click", coordinate=[15, 30]), call("left_click", coordinate=[90, 90])
    down = call("scroll", scroll_direction="down")

    def step(text: str, act: Any, task: Task = CLICK) -> Episode:
        return make_episode(task, turn(act, text=text))

    return rewards(
        recipe,
        step("<blink>[10, 20, 30, 38]</blink><think>There.</think>", hit),
        step("<blink>[10, 20, 30, 38]</blink><think>There.</think>", missed),
        step("<blink>[10, 20, 30, 38], [10, 20, 30, 40]</blink><think>There.</think>", hit),
        step("<blink>[10, 20, 30, 30]</blink><think>There.</think>", hit),
        step("<think>There.</think>", hit),
        step("<blink>[]</blink><think>Below.</think>", down, SCROLL),
    )


def boxes(recipe: Recipe) -> list[float | None]:
    """The rewards of boxes: the right one, one that overlaps it, one beside it, and none."""
    texts = ("[0, 0, 10, 10]", "[0, 0, 10, 8]", "[15, 20, 25, 30]", None)
    return rewards(recipe, *(make_episode(PLACE, turn(), answer=text) for text in texts))


def thresholds(run: Run) -> list[Any]:
    """By episode: the verifiers that scored it, and the threshold of overlap."""
    return [[sorted(each.components), each.task.data.get("iou_threshold")] for each in run.played]


def routed(recipe: Recipe) -> list[Any]:
    """The rewards of a box that overlaps by nine tenths in iterations 0, 2 and 9 of 20, of one box too many, of a
    number, and of an evaluation's box; and what scored the number."""
    place = Task.of("p", "Where?", source="grounding", verifiers=["grounding", "boxed"], box=[0, 0, 10, 10])
    sums = Task.of("m", "What is it?", source="maths", verifiers=["maths", "form"], answer="7")

    def boxed(task: Task, answer: str) -> Episode:
        return make_episode(task, turn(text=f"<answer>{answer}</answer>"), answer=answer)

    at = [planned(recipe, place, iteration, iterations=20).task for iteration in (0, 2, 9)]
    made = [boxed(task, "[0, 0, 10, 9]") for task in at]
    made += [boxed(at[0], "[0, 0, 10, 9] [40, 40, 50, 50]"), boxed(sums, "7"), boxed(place, "[0, 0, 10, 9]")]
    return [*rewards(recipe, *made), list(scored(recipe, made[4:5])[0].components)]


def by_stage(run: Run) -> list[list[str]]:
    """The rewards that each stage pays."""
    found: dict[str, set[str]] = {}
    for each in run.played:
        found.setdefault(each.id.partition("/")[0], set()).update(each.components)
    return [sorted(names) for names in found.values()]


def staged(recipe: Recipe) -> dict[str, Any]:
    """Stage by stage: the rewards of a step that is right, of another step, of a right step in another form, and of the
    last, which solves the page."""
    wanted = {"name": "click", "arguments": {"ref": 3}, "box": [10, 20, 30, 40]}
    info = {"wanted": [wanted], "raw": -1.0}
    said = "<think>Next.</think><action>click 3</action>"
    page = Task.of("page", "Click on OK.")
    made = [
        make_episode(page, turn(call("click", ref=3), text=said), info=info),
        make_episode(page, turn(call("click", ref=4), text=said), info=info),
        make_episode(page, turn(call("left_click", x=15, y=30)), info={**info, "raw": 1.0}),
    ]
    stages = [each for each in stages_of(recipe) if each.kind == "rl"]
    return {each.name: rewards(each.recipe, *made) for each in stages}


TINY = (
    "model={scratch: {hidden: 64, layers: 2, heads: 2, vocab_size: 600, max_context: 1024}, device: cpu}",
    "train.trainable=null", "train.lr=1.0e-3", "train.groups=2", "agent.describe_tools=false", "agent.format=tags",
)  # fmt: skip
"""Overrides: a tiny policy in place of a language model."""

METHODS = [
    # Form + look + action: all; no hit; a place that is named twice; half of the box is not more than half; no blink;
    # a scroll has nothing to look at.
    Method(
        "btl-ui", component("look"), phases, [3.0, 2.0, 2.0, 2.0, 1.0, 3.0], sized=SCREEN,
        warmed=SCREENS, start="btl-ui",
    ),
    # IoU + .1 (1 - distance / 50): 1 + .1; .8 + .1 (1 - 1 / 50); .1 (1 - 25 / 50).
    Method("ruig", component("overlap"), boxes, [1.1, 0.898, 0.05, 0.0], sized=SCREEN, warmed=SCREENS, start="ruig"),
    # .9 IoU + .1 for a box: .9 >= .85; .9 < .95; .9 < .99; times .6 for one too many; .9 + .1; .9 >= .5.
    Method(
        "v-triune", thresholds, routed, [0.91, 0.1, 0.1, 0.586, 1.0, 0.91, ["maths", "form"]],
        sized=("tasks.args.n=6", "train.groups=6", "sampling.temperature=2.0"), warmed=(*SCREENS, "tasks.args.n=6"),
        start="v-triune",
    ),
    # Action + form of single steps; then page + form of whole tasks.
    Method(
        "mobile-r1", by_stage, staged, {"action": [2.0, 1.0, 1.0], "task": [1.0, 1.0, 1.0]},
        sized=(
            *TINY, "sampling.temperature=1.3", "tasks.args.families=[click-button-sequence]", "tasks.args.seeds=2",
            "stages.0.sft={script: oracle, episodes: 16, steps: 80, batch: 4, lr: 3.0e-3}",
            "stages.1.rl.train.iterations=2", "stages.2.rl.train.iterations=2",
            "stages.1.rl.tasks.args={families: [click-button-sequence], seeds: 2}",
        ),
        warmed=None, learns=stages_learned,
    ),
]  # fmt: skip
