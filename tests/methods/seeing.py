"""Methods of policies that see screens and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentrl.config.recipe import Recipe
from agentrl.registry.references import load_object
from agentrl.rollouts.builder import build
from agentrl.training.stages.stage import stages_of
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from tests.methods.curricula import stages_learned
from tests.methods.played import planned
from tests.methods.proofs import Method, Run
from tests.methods.rewards import SCREEN, SCREENS, component, scored
from tests.methods.stub_api import Asking, between, said
from tests.rewards.make import call, make_episode, turn

LENGTHS = load_object("./mobile-r1/task.py:LENGTHS", Path(__file__).parents[2] / "recipes" / "methods")

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


def curriculum(recipe: Recipe) -> list[Any]:
    """Stage by stage: the lengths of the ways, and the share of questions; then the rewards of a step that is right, of
    the right tool at another element, of another tool, and of two answers to a question."""
    stages = [each for each in stages_of(recipe) if each.kind == "rl"]
    plan = []
    for each in stages:
        tasks = build(each.recipe).tasks.tasks
        lengths = sorted({LENGTHS[str(task.data["family"])] for task in tasks})
        plan.append((lengths, round(sum("asked" in task.data for task in tasks) / len(tasks), 2)))
    wanted = [{"name": "click", "arguments": {"ref": 3}, "box": [10, 20, 30, 40]}]
    asked = {"question": "Question: what does element [3] say?", "reference": "OK"}
    step = Task.of("s", "Click on OK.", family="click-button", scored_by=["tool", "arguments", "form"])
    question = Task.of("q", "Click on OK.", family="click-button", scored_by=["understood"])
    said = "<think>Next.</think><action>click 3</action>"
    made = [
        make_episode(step, turn(call("click", ref=3), text=said), info={"wanted": wanted}),
        make_episode(step, turn(call("click", ref=4), text=said), info={"wanted": wanted}),
        make_episode(step, turn(call("key", keys="Enter")), info={"wanted": wanted}),
    ]
    if recipe.reward_of is None:
        return [*plan, rewards(recipe, *made)]
    made += [make_episode(question, turn(), answer=answer, info=asked) for answer in ("It says OK.", "No")]
    return [*plan, rewards(recipe, *made)]


def by_length(run: Run) -> list[Any]:
    """By stage: the families, and the rewards that were paid."""
    found: dict[str, set[str]] = {}
    for each in run.played:
        family = str(each.task.data["family"])
        found.setdefault(each.id.partition("/")[0], set()).update([family, *each.components])
    return [sorted(names) for names in found.values()]


def grader(body: Any) -> str:
    """Ten for an answer that has the words of the reference, three for another."""
    prompt = said(body)
    return json.dumps({"score": 10 if between(prompt, "reference") in between(prompt, "answer") else 3})


def cut_off(run: Run) -> list[int]:
    """The turns of the episodes that a limit of turns ended."""
    return [len(each.turns) for each in run.played if each.stop == "turns"]


def walked(recipe: Recipe) -> list[Any]:
    """The limits of turns of walks that take an expert one turn, three, nine; the rewards of a walk that was stopped
    beside the thing, one cell off, and three cells off, and of one beside it that was not stopped."""
    rl = stages_of(recipe)[-1].recipe
    turns = [planned(rl, Task.of("w", "go", expert_turns=turns)).max_turns for turns in (1, 3, 9)]
    ends = [(0, True), (1, True), (3, True), (0, False)]
    task = Task.of("w", "go", expert_turns=1)
    infos = [{"distance": distance, "stopped": stopped} for distance, stopped in ends]
    return [*turns, rewards(rl, *(make_episode(task, turn(), info=info) for info in infos))]


TINY = (
    "model={scratch: {hidden: 64, layers: 2, heads: 2, vocab_size: 600, max_context: 1024}, device: cpu}",
    "train.trainable=null", "train.lr=1.0e-3", "train.groups=2", "agent.describe_tools=false", "agent.format=tags",
)  # fmt: skip
"""Overrides: a tiny policy in place of a language model."""

PAGES = "[click-button, click-button-sequence, form-sequence-2]"
"""Families of ways of one turn, of two and of three."""

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
    # The pages of one length a stage, one question to four steps. Tool 1 + arguments 1 + form .5; tool + form; nothing;
    # 2 x the grade.
    Asking(
        "craft-gui", by_length, curriculum,
        [([1], 0.2), ([2], 0.2), ([3], 0.2), [2.5, 1.5, 0.0, 2.0, 0.6]],
        sized=(
            *TINY, "sampling.max_tokens=48", "agent.max_turns=4",
            "stages.0.sft={script: oracle, episodes: 12, steps: 60, batch: 4, lr: 3.0e-3,"
            f" tasks: {{source: ./task.py:shown, args: {{families: {PAGES}, seeds: 2}}}}}}",
            *(
                f"stages.{k}.rl={{train: {{iterations: 2}}, tasks: {{source: ./task.py:samples,"
                f" args: {{families: {PAGES}, lengths: [{k}], seeds: 2, questions: 2}}}}}}"
                for k in (1, 2, 3)
            ),
        ),
        warmed=None, learns=stages_learned, answer=grader, asks=("rewards.understood.judge",),
    ),
    # Half of the expert's turns, one at least; 15 (1 - distance / 3).
    Method(
        "activevln", cut_off, walked, [1, 2, 5, [15.0, 10.0, 0.0, 0.0]],
        small=("curriculum=[{expert_budget: {times: 0.5, least: 1}}]",),
        sized=(
            "tasks.args.n=8", "stages.0.sft={script: oracle, episodes: 8, steps: 60, batch: 4, lr: 3.0e-3}",
            "stages.1.rl.train.iterations=2", "sampling.temperature=1.0",
        ),
        warmed=None, learns=stages_learned,
    ),
]  # fmt: skip
