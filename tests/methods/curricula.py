"""Methods that choose tasks, episodes or limits."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from safetensors.numpy import load_file

from agentrl.config.recipe import Recipe
from agentrl.config.stages import PreferenceStage
from agentrl.curriculum import Group
from agentrl.curriculum.methods.sources import SourceSampler
from agentrl.curriculum.task_source import TaskSource
from agentrl.rollouts.builder import build
from agentrl.training.stages.stage import stages_of
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from tests.estimators.golden_scalars import plan
from tests.methods.played import credited, curriculum, drawn, episode, group, rewards_of, tasks
from tests.methods.proofs import WARMED, Method, Run
from tests.rewards.make import make_episode, turn

FEW = ("tasks.args.n=4", "train.groups=8", "train.group_size=2")
"""Overrides: four tasks, each of which comes twice in an iteration."""
PAIRS = ("train.groups=8", "train.group_size=2")
"""Overrides: groups that often fail as a whole."""


def horizons(recipe: Recipe) -> list[int]:
    """The limits of turns at three iterations; without a part that sets them, the recipe's own."""
    parts = build(recipe).make_curriculum()
    return [plan(parts[0], at).max_turns if parts else recipe.agent.max_turns for at in (0, 1, 9)]


def longest(run: Run) -> list[int]:
    """The turns of the longest episode of each iteration."""
    found: dict[int, int] = {}
    for each in run.played:
        found[each.iteration] = max(found.get(each.iteration, 0), len(each.turns))
    return list(found.values())


def groups_of(run: Run, iteration: int) -> list[Task]:
    """The tasks of an iteration's groups, in the order in which they were drawn."""
    found = {each.group_id: each.task for each in run.played if each.iteration == iteration}
    return [found[id] for id in sorted(found)]


def jumps(run: Run) -> list[int]:
    """From group to group of an iteration, the steps in the order of BabyAI's tasks. Without a sampler each is 1."""
    places = [[int(task.id.rpartition("-")[2]) for task in groups_of(run, at)] for at in (0, 1)]
    return [b - a for each in places for a, b in itertools.pairwise(each)]


def mixtures(run: Run) -> list[dict[str, int]]:
    """How often each level of BabyAI was drawn, iteration by iteration. Without a sampler they take turns."""
    return [
        dict(sorted(Counter(t.data["game"]["kwargs"]["level"] for t in groups_of(run, at)).items())) for at in (0, 1)
    ]


def selected(run: Run) -> list[float | None]:
    """The number of tasks that are left to train on, update by update."""
    return [line.get("limr_tasks") for line in run.reader.metrics() if line.get("split") == "train"]


def that_follow(recipe: Recipe) -> list[str]:
    """What is drawn after four passes over four tasks, three of which are learned half way, and one is lost then."""
    found, source = curriculum(recipe), tasks("a", "b", "c", "d")
    for at, reward in enumerate((0, 0, 1, 1)):
        drawn(found, source, 4, at)
        found.observe([group(id, 1 - reward if id == "c" else reward) for id in "abcd"], at)
    return sorted(set(drawn(found, source, 4, 4)))


def after_results(recipe: Recipe) -> list[str]:
    """What is drawn first when one task was always solved, one half of the time, and one never: two groups of four."""
    found = curriculum(recipe)
    found.observe([group("easy", *[1] * 60), group("half", *[1, 0] * 30), group("hard", *[0] * 60)], 3)
    return drawn(found, tasks("easy", "half", "hard"), 4, 4)[:2]


def after_two(recipe: Recipe) -> str:
    return after_results(recipe)[0]


def weights(recipe: Recipe) -> list[float]:
    """The weights of three sources, each of which had groups of eight; the last of them had no signal."""
    found = curriculum(recipe)
    levels = {name: Task.of(name, "Go.", game={"kwargs": {"level": name}}) for name in ("won", "half", "lost")}
    results = {"won": ([1.0] * 8, 0.0), "half": ([1.0, 0.0] * 4, 0.5), "lost": ([0.0] * 8, 0.0)}
    found.observe([group(levels[name], *of, advantages=[size] * 8) for name, (of, size) in results.items()], 7)
    if not isinstance(found.sampler, SourceSampler):
        return []
    assert sorted(drawn(found, TaskSource([*levels.values()], shuffle=False, seed=0), 1))[0] in levels
    known = found.sampler.weights([*levels])
    return [round(each / sum(known), 3) for each in known]


def demonstrated(recipe: Recipe) -> list[Any]:
    """What filters ask a script for after 32 tasks that no episode solved, and one that one did."""
    found = curriculum(recipe)
    found.observe([group("solved", 1, 0), *[group(f"t{k}", 0, 0) for k in range(32)]], 0)
    asked = [part.demonstrate() for part in found.filters]
    return [(script, lr, ids[0], len(ids)) for each in asked if each is not None for script, lr, ids in [each]]


def recomposed(recipe: Recipe) -> list[list[str]]:
    """What trains in iterations 1 and 4: a success and a failure of one turn, and a success and a failure of two."""
    members = [episode(f"{kind}{turns}", reward, turns=turns) for kind, reward in (("won", 1.0), ("lost", 0.0))
               for turns in (1, 2)]  # fmt: skip
    found = curriculum(recipe, *members)
    now = found.refine([credited(each) for each in members], 0)
    later = found.refine([], 3)
    return [[each.episode.id for each in trained] for trained in (now, later)]


def credited_groups(run: Run) -> list[bool]:
    """By episode: True if it got credit."""
    return [run.reader.credit(each.id) is not None for each in run.played]


def level_weights(run: Run) -> list[float]:
    """The weights of the levels after the last update."""
    last = run.reader.metrics()[-1]
    return [value for name, value in sorted(last.items()) if name.startswith("recap_weight/")]


def unlikely(recipe: Recipe) -> list[str]:
    """The tasks that train, of which the first is always solved, the second half of the time, the others less often."""
    found = curriculum(recipe)
    played = [
        group("easy", 1, 1, 1, 1),
        group("half", 1, 1, 0, 0),
        group("rare", 0, 0, 0, 1),
        group("hard", 0, 0, 0, 0),
    ]
    return [each.task.id for each in found.select(played, 4, 0)]


def scaled(recipe: Recipe) -> list[float]:
    """The credit of three episodes of equal credit 1/2. Levels: still at 0; from 1 to 0; still at 1."""
    found = curriculum(recipe)
    levels = {name: Task.of(name, "Go.", game={"kwargs": {"level": name}}) for name in ("still", "falls", "won")}
    for at, rewards in enumerate(({"still": 0.0, "falls": 1.0, "won": 1.0}, {"still": 0.0, "falls": 0.0, "won": 1.0})):
        found.observe([group(levels[name], reward) for name, reward in rewards.items()], at)
    trained = found.refine([credited(episode(name, 0.0, task=task)) for name, task in levels.items()], 2)
    return [round(each.credit.turn_advantages[0], 3) for each in trained]


def of_my_level(recipe: Recipe) -> list[str]:
    """What is drawn after a pass in which a task was always solved, one half of the time, one seldom, one never."""
    found, source = curriculum(recipe), tasks("easy", "half", "rare", "hard")
    drawn(found, source, 4)
    rates = {"easy": 4, "half": 2, "rare": 1, "hard": 0}
    found.observe([group(name, *[1] * solved, *[0] * (4 - solved)) for name, solved in rates.items()], 0)
    return drawn(found, source, 4, 1)


def temperatures(recipe: Recipe) -> list[float | None]:
    """The temperature at first, after tokens of 0.6 nats, and then after tokens of 0.15 nats."""
    found, task = curriculum(recipe), Task.of("t", "Go.")
    source, planned = tasks("t"), []
    for at, logprob in enumerate((-0.6, -0.15, -0.3)):
        planned += [plan.temperature for plan in found.draw(source, 1, 8, 12, at)]
        found.observe([Group("g", task, [episode("e", 1.0, logprob=logprob)])], at)
    return planned


def stage(recipe: Recipe, name: str) -> Recipe:
    """The recipe as one of its stages sees it."""
    return next(each.recipe for each in stages_of(recipe) if each.name == name)


def curated(recipe: Recipe) -> list[Any]:
    """The second plan of a task that four of five episodes of three turns solved; a group that failed at a task that
    was solved beforehand; and the masked turns of an episode of five turns of one entropy."""
    easy, hard = Task.of("easy", "Go."), Task.of("hard", "Go.")
    old = episode("old", 1.0, task=hard)
    found = curriculum(stage(recipe, "learn"), old)
    source = TaskSource([easy], shuffle=False, seed=0)
    found.draw(source, 1, 8, 12, 0)
    (joined,) = found.select([group(hard, 0, 0)], 1, 0)
    (kept,) = found.refine([credited(episode("e", 1.0, turns=5))], 0)
    found.observe([Group("g", easy, [episode(f"{k}", float(k > 0), task=easy, turns=3) for k in range(5)])], 0)
    (plan,) = found.draw(source, 1, 8, 12, 1)
    return [plan.size, plan.max_turns, [each.id for each in joined.episodes], sorted(kept.masked_turns)]


def hints(recipe: Recipe) -> list[str]:
    """The prompts of a task that was solved without a hint, and of one that was not even solved with all of it."""
    found, source = curriculum(recipe), tasks("easy", "hard", hint="first add 2")
    for at in range(4):
        plans = found.draw(source, 2, 8, 12, at)
        if len(found.parts):
            found.parts[0].state |= {"hard": [[1.0, 0.0]] * 4}
        found.observe([group(plans[0].task, 1, 1)], at)
    return [str(plan.task.instruction[-1]["content"]) for plan in found.draw(source, 2, 8, 12, 4)]


def harmonised(recipe: Recipe) -> list[str]:
    """What trains of four right and four wrong episodes with process scores 0, 1/10, 2/10, 3/10."""
    members = [
        episode(f"{kind}{k}", reward, rewards={"sound": k / 10}, components={"exact": reward})
        for kind, reward in (("right", 1.0), ("wrong", 0.0))
        for k in range(4)
    ]
    (kept,) = curriculum(recipe).select([Group("g", members[0].task, members)], 1, 0)
    return [each.id for each in kept.episodes]


def prepared(recipe: Recipe) -> list[Any]:
    """The stages before the last: the number of tasks that are demonstrated, or the losses on pairs and their run."""
    told: list[Any] = []
    for each in stages_of(recipe)[:-1]:
        settings = each.settings
        if isinstance(settings, PreferenceStage):
            told.append((settings.run, settings.loss.use))
        else:
            told.append((each.name, len(build(each.recipe).tasks)))
    return told


def by_stage(run: Run, told: Callable[[Episode], str]) -> list[list[str]]:
    """What is told of the episodes of each stage."""
    found: dict[str, set[str]] = {}
    for each in run.played:
        found.setdefault(each.id.partition("/")[0], set()).add(told(each))
    return [sorted(values) for values in found.values()]


def graded(recipe: Recipe, task: Task, answer: str, at: int = 0) -> float:
    """The reward of an answer."""
    said = make_episode(task, turn(text=answer), answer=answer, iteration=at)
    return round(asyncio.run(rewards_of(recipe).score(task, said)).total or 0.0, 3)


def widened(recipe: Recipe) -> list[Any]:
    """Stage by stage, the form of the questions, and the reward of an answer that is right as far as it goes."""
    task = Task.of("t", "What is it?", answer="pneumonia of the left lung")
    stages = [each for each in stages_of(recipe) if each.kind == "rl"]
    forms = [{task.id.partition("-")[0] for task in build(each.recipe).tasks.tasks} for each in stages]
    return [(*form, graded(each.recipe, task, "pneumonia")) for form, each in zip(forms, stages, strict=True)]


def domains(recipe: Recipe) -> list[Any]:
    """Stage by stage the domains, the longest reply, the reward, and whether an update is one step on policy."""
    found = []
    for each in (each for each in stages_of(recipe) if each.kind == "rl"):
        train, tasks_of = each.recipe.train, build(each.recipe).tasks.tasks
        assert train is not None
        sources = {str(task.data["source"]) for task in tasks_of}
        on_policy = train.minibatch >= train.groups * train.group_size
        found.append((*sources, each.recipe.sampling.max_tokens, *each.recipe.rewards, on_policy))
    return found


def dated(recipe: Recipe) -> dict[str, float]:
    """Stage by stage the reward of a hard date, ten months off, in iteration 25; then rewards of easy questions."""
    far = Task.of("far", "When?", kind="inference", hard=True, dates=["2000-01"], month=1)
    found = {each.name: graded(each.recipe, far, "2000-11", 25) for each in stages_of(recipe) if each.kind == "rl"}
    for kind, dates, answer in (
        ("difference", ["2000-01", "2000-11"], "2000-01, 2000-09; 10"),
        ("ordering", ["2000-01", "2000-03", "2001-05"], "2000-01, 2000-03, 2001-05; 1-2-3"),
        ("completion", ["2000-01"], "2000-03; 12"),
        ("inference", ["2000-01"], "soon"),
    ):
        task = Task.of("t", "When?", kind=kind, hard=False, dates=dates, month=1)
        found[kind] = graded(recipe, task, answer)
    return found


def pretrained(recipe: Recipe) -> list[int]:
    """The numbers of calls with which the demonstrations of the pretraining count to 3."""
    assert recipe.warm_start is not None
    script = build(recipe).scripts[recipe.warm_start.script]
    plays = [script(Task.of("t", "Count to 3.", to=3), random.Random(seed)) for seed in range(40)]
    return sorted({len(list(play)) for play in plays})


def mixed(recipe: Recipe) -> list[float]:
    """The weights after four pilots of two iterations: the more of `b`, the more the rewards of all sources rise."""
    found = curriculum(recipe)
    levels = {name: Task.of(name, "Go.", game={"kwargs": {"level": name}}) for name in "abc"}
    source = TaskSource([*levels.values()], shuffle=False, seed=0)
    for at, gain in enumerate((0.2, 0.1, 0.4, 0.1)):  # all alike, half to a, to b, to c
        for step in range(2):
            drawn(found, source, 4, 2 * at + step)
            found.observe([group(task, step * gain) for task in levels.values()], 2 * at + step)
    drawn(found, source, 4, 8)
    return [value for _, value in sorted(found.observe([], 8).items())]


def harder(recipe: Recipe) -> list[list[str]]:
    """What the stage `hard` draws after a pass over ten tasks, each harder than the one before: at once, in its second
    and in its third phase."""
    found, source = curriculum(stage(recipe, "hard")), tasks(*[f"t{k}" for k in range(10)])
    drawn(found, source, 10)
    found.observe([group(f"t{k}", *[1] * (10 - k), *[0] * k) for k in range(10)], 0)
    return [sorted(set(drawn(found, source, 20, at))) for at in (1, 6, 11)]


def stages_learned(run: Run) -> None:
    """Asserts that every stage took steps with a gradient, and that the weights changed."""
    lines = [line for line in run.reader.metrics() if "grad_norm" in line]
    for name in {line.get("stage") for line in lines}:
        assert any(line["grad_norm"] > 0 for line in lines if line.get("stage") == name)
    kept = sorted(run.path.glob("checkpoints/*"))
    assert len(kept) > 1
    first, last = (load_file(folder / "model.safetensors") for folder in (kept[0], kept[-1]))
    assert any((first[name] != last[name]).any() for name in first)


METHODS = [
    Method(
        "scaling-inter",
        longest,
        horizons,
        [2, 4, 4],
        small=("curriculum=[{scaling_inter: {max_turns: [2, 4], every: 1}}]",),
    ),
    # In the first two passes the mean is 1/4. Three tasks differ from it by 1/4: 1 - (2/16) / (18/16) = 0.89. The
    # fourth differs by 3/4: 1 - (18/16) / (18/16) = 0, which is not above 0.
    Method(
        "limr",
        selected,
        that_follow,
        ["a", "b", "d"],
        small=("curriculum=[{limr: {passes: 2, threshold: 0.0}}]",),
        sized=FEW,
    ),
    # p (1 - p)^2 is 1/8 at 1/2, and nearly 0 where Beta(61, 1) and Beta(1, 61) have their mass.
    Method("vade", jumps, after_two, "half"),
    # p (1 - p) is 0, 1/4, 0: the half of the four groups that is drawn by weight is of one task.
    Method("mmr1", jumps, after_results, ["half", "half"]),
    # Scores 0, 0.5, 0 plus one bonus for all; softmax at 0.1: 1, e^5, 1 over their sum.
    Method("dump", mixtures, weights, [0.007, 0.987, 0.007]),
    # Gaps 0, 1/2, 1: exp((gap + 0.1) / 0.3) is in the ratio 1, e^(5/3), e^(10/3) = 1, 5.294, 28.032.
    Method("rule-reasoner", mixtures, weights, [0.029, 0.154, 0.817]),
    Method(
        "relift",
        lambda run: run.metric("relift_loss"),
        demonstrated,
        [("oracle", 1.0e-3, "t0", 32)],
        small=("curriculum=[{relift: {script: oracle, buffer: 1, lr: 1.0e-3}}]",),
        sized=PAIRS,
        warmed=(*WARMED, "warm_start.script=stroller"),
    ),
    Method(
        "rorecomp",
        lambda run: run.metric("rorecomp_waiting"),
        recomposed,
        [["won1", "lost2"], ["won2", "lost1"]],
        small=("curriculum=[{rorecomp: {every: 2}}]",),
    ),
    # Less than half of the group is right: 1/4 and 0.
    Method("self", credited_groups, unlikely, ["rare", "hard"]),
    # Convergence 1 / 1, 1 / (1/2), 0; instability 0, (1/2) / (1/2), 0: scores 1, 3, 0. Factors 3 e^s / (e + e^3 + 1).
    Method("recap", level_weights, scaled, [0.171, 1.266, 0.063]),
    Method(
        "simplerl-zoo",
        lambda run: [line.get("of_level_tasks") for line in run.reader.metrics() if line.get("split") == "train"],
        of_my_level,
        ["half", "rare", "hard", "half"],
        small=("curriculum=[{of_level: {passes: 1, low: 0.0, high: 0.9}}]",),
        sized=("tasks.args.n=4",),
    ),
    # 1 + (0.3 - 0.6) / 0.6 = 1/2; then 1 + (0.3 - 0.15) / 0.6 = 5/4 of that.
    Method(
        "acereason-1.1",
        lambda run: [each.temperature for each in run.played],
        temperatures,
        [1.0, 0.5, 0.625],
    ),
    Method(
        "drive",
        lambda run: [line.get("hard_focus_tasks") for line in run.reader.metrics() if line.get("stage") == "hard"],
        harder,
        [[f"t{k}" for k in range(10 - n, 10)] for n in (6, 5, 3)],
        sized=(
            "stages.0.sft.steps=60",
            "stages.1.rl.train.iterations=2",
            "stages.2.rl.train.iterations=2",
            "stages.2.rl.train.group_size=8",
            "train.groups=7",
        ),
        warmed=None,
        learns=stages_learned,
    ),
    # (1 - 4/5) / (1 - 0.6) = 1/2 of eight episodes; 3 + 2 turns; the success joins; one turn of five is masked.
    Method(
        "dart",
        lambda run: [
            [line[name] for name in ("dart_successes_joined", "dart_turns_masked")]
            for line in run.reader.metrics()
            if line.get("stage") == "learn"
        ],
        curated,
        [4, 5, ["hard#0", "hard#1", "old"], [4]],
        sized=(
            "tasks.args.n=4",
            "stages.0.sft.steps=60",
            "stages.0.sft.episodes=64",
            "stages.1.rl.train.iterations=2",
            "stages.2.rl.train.iterations=3",
            "stages.2.rl.train.group_size=2",
        ),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "seele",
        lambda run: [each.task.data.get("hint_rate") for each in run.played],
        hints,
        ["Go.", "Go.\n\nHint: first add 2"],
        sized=("train.groups=7", "warm_start.steps=60"),
        warmed=None,
        learns=stages_learned,
    ),
    # Half of eight: the two right ones with the highest scores, and the two wrong ones with the lowest.
    Method(
        "prof",
        credited_groups,
        harmonised,
        ["right2", "right3", "wrong0", "wrong1"],
        sized=("train.groups=7", "warm_start.steps=60"),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "light-r1",
        lambda run: run.metric("margin"),
        prepared,
        [("all", 7), ("hardest", 3), ("sample", 7), ("sample", "dpo")],
        sized=(
            "stages.0.sft.steps=60",
            "stages.1.sft.steps=10",
            "stages.2.rl.train.iterations=2",
            "stages.3.preference.epochs=4",
            "stages.3.preference.metrics_every=1",
            "stages.4.rl.train.iterations=2",
            "train.groups=7",
        ),
        warmed=None,
        learns=stages_learned,
    ),
    # F1 of one word of four: precision 1, recall 1/4.
    Method(
        "medcco",
        lambda run: by_stage(run, lambda each: ", ".join(each.components)),
        widened,
        [("closed", 0.0), ("open", 0.4)],
        sized=(
            "stages.0.sft.steps=200",
            "stages.1.sft.steps=200",
            "stages.2.rl.train.iterations=3",
            "stages.2.rl.train.groups=8",
            "stages.3.rl.train.iterations=2",
        ),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "acereason",
        lambda run: by_stage(run, lambda each: str(each.task.data["source"])),
        domains,
        [("maths", 24, "numeric", True), ("maths", 40, "numeric", True), ("code", 40, "code_tests", True)],
        sized=("stages.0.sft.steps=150", *(f"stages.{k}.rl.train.iterations=2" for k in (1, 2, 3))),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "time-r1",
        lambda run: by_stage(run, lambda each: str(each.task.data["kind"])),
        dated,
        {
            # 0.05 + exp(-10 alpha), alpha 0.1, 0.07, half way between them, and 0.1.
            "easy": 0.418,
            "all": 0.547,
            "strict": 0.477,
            "future": 0.418,
            # 0.05 + (1/4 (1 + exp(-0.2)) + 1/2) exp(-0.2): two months off, and two months from its own dates.
            "difference": 0.832,
            # 0.05 + 0.6 + 0.4 * 0.999.
            "ordering": 1.05,
            # 0.05 + 1/2 exp(-0.2) + 1/2 exp(-0.3): December is a month from January.
            "completion": 0.83,
            "inference": -0.2,
        },
        sized=("stages.0.sft.steps=200", *(f"stages.{k}.rl.train.iterations=2" for k in (1, 2, 3, 4))),
        warmed=None,
        learns=stages_learned,
    ),
    # One call, or three.
    Method(
        "echo-chamber",
        lambda run: [each.components["one_step"] for each in run.played],
        pretrained,
        [1, 3],
        sized=("warm_start.steps=100", "train.groups=7"),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "modomodo",
        lambda run: [
            [value for name, value in sorted(line.items()) if name.startswith("mixture_weight/")]
            for line in run.reader.metrics()
            if line.get("split") == "train"
        ],
        mixed,
        [0.0, 1.0, 0.0],
        small=("curriculum=[{mixture: {key: game.kwargs.level, every: 2}}]",),
        sized=("train.iterations=3",),
        learns=stages_learned,
    ),
]
