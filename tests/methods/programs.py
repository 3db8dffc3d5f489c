"""Methods that try again, criticise, write programs or call functions."""

from __future__ import annotations

import fnmatch
import inspect
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.numpy import load_file

import agentrl
from agentrl import Say, Task
from agentrl.config.recipe import Recipe
from agentrl.curriculum.parts import CreditedEpisode, CurriculumContext, Filter, Group
from agentrl.estimators.registry import EpisodeCredit
from agentrl.estimators.table import CreditTable
from agentrl.registry.references import load_object
from agentrl.rollouts.builder import build
from agentrl.store.run_dir import RunDir
from agentrl.types.episode import Episode
from tests.estimators.tables import Member, Step, table_of
from tests.methods.curricula import stages_learned
from tests.methods.proofs import Method, Run, distinct

# --- episodes whose replies are written by hand ---------------------------------------------------------------------


def played(recipe: Recipe, *replies: Any, task: dict[str, Any] | None = None, **more: Any) -> Episode:
    """Plays replies (texts, or lists of calls) by the agent, tools and rewards of a recipe.

    Args:
        replies: those of the conversation `main` (texts, calls, or `Say`), or a mapping by context.
        task: instruction and data of the task; default: the first of the recipe.
        more: overrides of the recipe.
    """
    by_context = replies[0] if replies and isinstance(replies[0], dict) else {"main": replies}
    SAID.clear()
    SAID.update({name: [*each] for name, each in by_context.items()})
    overrides: dict[str, Any] = {"scripts.by_hand": f"{__name__}:said", "eval": None, **more}
    if task is not None:
        ASKED.clear()
        ASKED.update(task)
        overrides["tasks"] = {"source": f"{__name__}:asked"}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        agentrl.rollout(recipe, 1, script="by_hand", overrides=overrides, out=path, reporters=())
        (episode,) = RunDir.read(path).episodes()
        return episode


SAID: dict[str, list[Any]] = {}
ASKED: dict[str, Any] = {}


def asked() -> Iterator[Task]:
    """The task of `played`."""
    yield Task.of("by-hand", ASKED.get("instruction", "?"), **{k: v for k, v in ASKED.items() if k != "instruction"})


def said(task: Task, rng: Any, context: str) -> Iterator[Say]:
    """The replies of `played`."""
    for each in SAID[context]:
        yield each if isinstance(each, Say) else Say(each) if isinstance(each, str) else Say(calls=each)


def turn_rewards(episode: Episode) -> list[float]:
    return [round(turn.reward or 0.0, 3) for turn in episode.turns]


# --- tries ----------------------------------------------------------------------------------------------------------

REMAINDERS = (
    "tasks.args={kinds: [powers], n: 4, seed: 3}", "model.scratch.hidden=32",
    "warm_start.script=hunch", "warm_start.episodes=32", "warm_start.steps=60",
)  # fmt: skip
"""Overrides: problems with few answers, which a policy guesses after 60 steps."""

SIX = {"instruction": "2 * 3?", "answer": "6", "code": "print(2 * 3)", "level": "easy"}


PINNED = "train.kl={coef: 0.001, estimator: k2}"
"""An override: a base without a reference policy does not keep the checkpoint that it starts from."""


def numbers_of_tries(run: Run) -> list[int | None]:
    """By episode the number of its tries; None without any."""
    return [len(found) if (found := episode.info.get("tries")) else None for episode in run.played]


def four_four_six(recipe: Recipe) -> list[float]:
    """The rewards of an episode's turns that answers 4, 4 and 6; right is 6."""
    return turn_rewards(played(recipe, *(f"<answer>{number}</answer>" for number in (4, 4, 6)), task=SIX))


def guided(recipe: Recipe) -> list[Any]:
    """An episode that answers 4 and 6, right is 6: its reward, what its second prompt adds, and the turns masked."""
    episode = played(recipe, "<answer>4</answer>", "<answer>6</answer>", task=SIX)
    prompts = [(each.messages or [])[-1]["content"] for each in episode.branches]
    return [episode.reward, prompts, masked(recipe, episode)]


def masked(recipe: Recipe, episode: Episode) -> list[int]:
    """The turns of an episode that the recipe's curriculum keeps from training."""
    context = CurriculumContext(0, 2, random.Random(0), lambda id: episode)
    credited = [
        CreditedEpisode(
            episode, EpisodeCredit(episode_id="e", estimator="", turn_advantages=[0.0] * len(episode.turns))
        )
    ]
    for part in build(recipe).make_curriculum():
        if isinstance(part, Filter):
            credited = part.refine(credited, context)
    return sorted(credited[0].masked_turns)


def restarts(run: Run) -> list[int]:
    """Returns for each episode how often it restarted with guidance."""
    return [sum(each.reason == "rewrite" for each in episode.branches) for episode in run.played]


# --- rewards of two parts -------------------------------------------------------------------------------------------


def parted(run: Run, component: str) -> list[float | None]:
    """By episode the value of a reward component; None where the recipe has none of that name."""
    return [episode.components.get(component) for episode in run.played]


def dual(recipe: Recipe) -> list[Any]:
    """Rewards of a right answer with a call, a wrong answer, and a call that cannot be read; where it is evaluated."""
    call = [("calculate", {"expression": "2 * 3"})]
    replies = [(call, "<answer>6</answer>"), ("<answer>5</answer>",), ("<calculate>2 * 3", "<calculate>")]
    rewards = [played(recipe, *each, task=SIX, **{"agent.max_turns": len(each)}).reward for each in replies]
    assert recipe.eval is not None
    assert recipe.eval.tasks is not None
    return [rewards, sorted(recipe.eval.tasks.args["kinds"])]


# --- critics and explanations ---------------------------------------------------------------------------------------


def criticised(recipe: Recipe) -> list[float | None]:
    """Rewards of a critic: of a wrong answer that half of the refinements repair, and of a right answer."""
    solver: dict[str, Any] = {"policies": {"solver": {"script": "by_hand"}}, "agent.refinements": 2}
    wrong, right = "<answer>4</answer>", "<answer>6</answer>"
    after = {"refiner-1": [right], "refiner-2": [wrong]}
    found = [
        played(recipe, {"solver": [first], "main": ["Try 6. <answer>wrong</answer>"], **after}, task=SIX, **solver)
        for first in (wrong, right)
    ]
    return [episode.reward for episode in found]


FORMULA = {"instruction": "Write f. f(1) = 3. f(2) = 5.", "tests": [[1, 3], [2, 5], [11, 23]]}


def repaired(recipe: Recipe) -> list[Any]:
    """The reward of a wrong program that is explained and repaired, and the stages."""
    replies = ("<answer>1 * x + 2</answer>", "f(2) is 4, not 5. <answer>2 * x + 1</answer>")
    return [played(recipe, *replies, task=FORMULA).reward, [stage.name for stage in recipe.stages]]


def learned_in_stages(run: Run) -> None:
    """Asserts that every stage had a gradient, and that the weights changed between the last two checkpoints."""
    lines = list(run.reader.metrics())
    stages = distinct(line["stage"] for line in lines if "stage" in line)
    assert len(stages) > 1
    for stage in stages:
        assert any(line.get("grad_norm", 0.0) > 0 for line in lines if line.get("stage") == stage)
    before, after = (load_file(each / "model.safetensors") for each in sorted(run.path.glob("checkpoints/*"))[-2:])
    assert any((before[name] != after[name]).any() for name in before)


def abstracted(recipe: Recipe) -> list[Any]:
    """The solver's prompt with an abstraction, the reward of its answer, and what pays the abstractor."""
    names = list(recipe.policies)
    stand_in = {"policies": {name: {"script": "by_hand"} for name in names}} if names else {}
    said = {"abstraction": ["Multiply."], "main": ["<answer>6</answer>"]}
    episode = played(recipe, said, task=SIX, **stand_in)
    return [episode.prompt[-1]["content"], episode.reward, [each.outcome for each in recipe.policies.values()]]


# --- programs -------------------------------------------------------------------------------------------------------


def near(recipe: Recipe) -> list[float | None]:
    """Rewards of four inputs for the branch of `fnmatch.translate` that a bracket with an exclamation mark enters."""
    source, first = inspect.getsourcelines(fnmatch.translate)
    branch = first + 1 + next(k for k, line in enumerate(source) if "pat[j] == '!'" in line)
    branches = load_object("./trace.py:branches", recipe.base)
    (way,) = (each for each in branches("fnmatch:translate") if each[-1] == branch)
    task = {"target": "fnmatch:translate", "entry": "fnmatch:translate", "way": way}
    inputs = ["[!a]", "[a]", "a", "*"]
    return [played(recipe, f"<answer>{each}</answer>", task=task).reward for each in inputs]


PATCH = "--- a/{}.py\n+++ b/{}.py\n@@ -1 +1 @@\n-a\n+{}"


def similar(recipe: Recipe) -> list[float]:
    """Rewards of the right diff, of no diff, of one of another file, and of one that writes c for b."""
    said = [PATCH.format("f", "f", "b"), "I see no bug.", PATCH.format("g", "g", "b"), PATCH.format("f", "f", "c")]
    found = [played(recipe, f"```\n{each}\n```", task={"patch": said[0]}) for each in said]
    return [round(episode.reward or 0.0, 3) for episode in found]


def gated(recipe: Recipe) -> list[Any]:
    """Outcomes and rewards of turns: of a patch that repairs nothing, of an empty one, and of none."""
    touch = [("shell", {"command": "for file in $(git ls-files); do echo '#' >> $file; done"})]
    look = [("shell", {"command": "pwd"})]
    replies = [(touch, touch, "Done."), (look, "Done."), (look,)]
    found = [played(recipe, *each, **{"agent.max_turns": len(each)}) for each in replies]
    return [[episode.reward, turn_rewards(episode)] for episode in found]


# --- calls ----------------------------------------------------------------------------------------------------------

ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
RIGHT = {"name": "add", "arguments": {"a": [2, 3]}}


def called(recipe: Recipe) -> list[Any]:
    """Verdicts on a right call, a wrong one, and one without a thought; and the credit of two thoughts."""
    replies = [Say("<think>2</think>", [("add", {"a": a})]) for a in (2, 4)] + [Say(calls=[("add", {"a": 2})])]
    task = {"instruction": "Add 2.", "tools": ["Calls", ADD], "right": RIGHT}
    verdicts = [played(recipe, each, task=task).components["ast_match"] for each in replies]
    step = [Step(None, 0.5, 4)]
    table = table_of([Member("g", 1.0, step), Member("g", 0.0, step)])
    table = table.with_columns(entropy=[1, 3, 0, 0, 0.5, 0.5, 9, 9])
    return [verdicts, [round(value, 3) for value in build(recipe).credit(table).turn.tolist()]]


def bonuses(run: Run) -> list[Any]:
    """By episode the credit that its thought earns."""
    found = [run.reader.credit(episode.id) for episode in run.played]
    return [each.parts.get("entropy") for each in found if each is not None]


# --- corrected thoughts ---------------------------------------------------------------------------------------------


def corrected(recipe: Recipe) -> list[Any]:
    """Of two turns, the first of which a corrector accepts: what is imitated, and how many of its tokens get credit."""
    names = list(recipe.policies)
    more = {"policies": {name: {"script": "by_hand"} for name in names}} if names else {}
    said = {
        "main": ["<think>nothing</think>left", "<think>nothing</think>right"],
        "corrector-1": ["OK"],
        "corrector-2": ["it is behind me"],
    }
    episode = played(recipe, said, **more, **{"agent.max_turns": 4 if names else 2})
    context = CurriculumContext(0, 2, random.Random(0), lambda id: episode)
    parts = [part for part in build(recipe).make_curriculum() if isinstance(part, Filter)]
    credit = EpisodeCredit(episode_id="e", estimator="", turn_advantages=[1.0] * len(episode.turns))
    credited = [CreditedEpisode(episode, credit)]
    taught: list[Any] = []
    for part in parts:
        part.observe([Group("g", episode.task, [episode])], context)
        credited = part.refine(credited, context)
        taught += [(each.turn, each.text) for each in (part.correct(context) or (0.0, []))[1]]
    return [taught, credited[0].credit.token_advantages]


def by_lines(recipe: Recipe) -> list[tuple[int, float]]:
    """Where, in the tokens of a program whose last line is wrong, there are rewards, and how large they are."""
    wrong = played(recipe, "x += 1\nx *= 2\nx += 1", task={"instruction": "1 to 12", "x": 1, "target": 12})
    table = CreditTable.from_episodes([wrong])
    rewards, _ = table.placed(table.step_reward)
    return [(int(at), round(float(rewards[at]), 3)) for at in rewards.nonzero()[0]]


METHODS = [
    Method(
        "prl-coder",
        lambda run: [[span.value for turn in each.turns for span in turn.spans] for each in run.played],
        by_lines,
        [(5, 0.2), (12, 0.2), (19, -0.2)],
        sized=("warm_start.steps=200",),
        warmed=None,
        learns=stages_learned,
    ),
    # GRPO gives +-0.7071 and at most half of that as a bonus; 0.4 times the entropies 2 and 0.5 is 0.8 and 0.2.
    Method(
        "egpo",
        bonuses,
        called,
        [[1.0, 0.0, 0.0], [1.061, -0.507]],
        sized=(
            "tasks.args={categories: [simple_python], n: 4}",
            "sampling.max_tokens=64",
            "train.trainable=null",
            "train.lr=1.0e-3",
            "agent={max_turns: 1, format: tags, describe_tools: false}",
            PINNED,
            "model={scratch: {hidden: 32, layers: 1, heads: 1, vocab_size: 300, max_context: 512}, device: cpu}",
            "warm_start={script: careless, episodes: 32, steps: 150, batch: 4, lr: 1.0e-2}",
        ),
        warmed=None,
    ),
    # The third answer pays 1/2^2; two of three answers differ, which costs 1/2 (1 - 2/3).
    Method("ufo", numbers_of_tries, four_four_six, [0.0, 0.0, 0.083], sized=REMAINDERS, warmed=None),
    # 4 is smaller than 6, and the program of the task multiplies. Only the guided try, turn 1, trains.
    Method(
        "agent-rlvr",
        restarts,
        guided,
        [1.0, ["Guidance: Your answer 4 is too small. Plan: multiply."], [0]],
        sized=REMAINDERS,
        warmed=None,
    ),
    # Outcome and format are 1 and 1, -1 and 1, -1 and -1.
    Method(
        "tgrl",
        lambda run: parted(run, "format"),
        dual,
        [[2.0, 0.0, -2.0], ["count_bits", "gcd", "lcm", "letter_counting"]],
        sized=REMAINDERS,
        warmed=None,
    ),
    # The verdict on the wrong answer is right (1), and half of the refinements (0.5); the second verdict is wrong.
    Method(
        "refcritic",
        lambda run: parted(run, "refined"),
        criticised,
        [1.5, 0.0],
        sized=(
            "policies={solver: {script: solver}}",
            "tasks.args.n=64",
            "warm_start.episodes=32",
            "warm_start.steps=60",
            "model.scratch.hidden=32",
        ),
        warmed=None,
    ),
    # 1 for the repaired program, and half of 1: the explanation has the words of the failed test.
    Method(
        "ledex",
        lambda run: parted(run, "explained"),
        repaired,
        [1.5, ["format", "collect", "imitate", "reinforce"]],
        sized=(
            "stages.0.sft={script: coder, episodes: 64, steps: 150, batch: 8, lr: 5.0e-3}",
            "tasks.args.n=4",
            "stages.1.rl.train={iterations: 1, groups: 4, lr: 1.0e-6}",
            "model.scratch.hidden=32",
        ),
        warmed=None,
        learns=learned_in_stages,
    ),
    # Five blocks lead there: the loop, two tests before that of the bracket, its body, and that of the mark.
    Method(
        "r1-fuzz",
        lambda run: parted(run, "nearness"),
        near,
        [1.0, 0.8, 0.6, 0.2],
        sized=(
            "tasks.args.shown=false",
            "warm_start.episodes=32",
            "warm_start.steps=60",
            "model.scratch.hidden=32",
            "model.scratch.max_context=512",
        ),
        warmed=None,
    ),
    # The files of either diff count, each 0 if the other lacks it; two texts of 17 characters share 16: 2 * 16 / 34.
    Method(
        "swe-rl",
        lambda run: parted(run, "patch_similarity"),
        similar,
        [1.0, -1.0, 0.0, 0.941],
        sized=(
            "tasks.args={n: 16, packages: [inflection], around: 2, test: false}",
            "eval=null",
            "sampling.max_tokens=96",
            "agent.system=null",
            "train.trainable=null",
            "train.lr=1.0e-3",
            PINNED,
            "model={scratch: {hidden: 32, layers: 1, heads: 1, vocab_size: 320, max_context: 2048}, device: cpu}",
            "warm_start={script: editor, episodes: 32, steps: 200, batch: 8, lr: 5.0e-3}",
        ),
        warmed=None,
    ),
    # The gate is open at 0.3: only there do the calls that succeed pay 0.1.
    Method(
        "g-ra",
        lambda run: [[verdict.open for verdict in episode.gates] for episode in run.played],
        gated,
        [[0.3, [0.1, 0.1, 0.0]], [0.1, [0.0, 0.0]], [0.0, [0.0]]],
        small=("sandbox.spec.image=null",),  # what the test needs is on this machine
        sized=(
            "tasks.args.n=1",
            "sampling.max_tokens=40",
            "agent={max_turns: 3, format: tags, describe_tools: false}",
            "sandbox.spec.image=null",
            "train.trainable=null",
            "train.lr=1.0e-3",
            PINNED,
            "model={scratch: {hidden: 32, layers: 1, heads: 1, vocab_size: 320, max_context: 4096}, device: cpu}",
            "warm_start={script: tinker, episodes: 16, steps: 150, batch: 4, lr: 1.0e-2}",
        ),
        warmed=None,
    ),
    Method(
        "rlad",
        lambda run: run.metric("abstractor/grad_norm"),
        abstracted,
        ["Use this: Multiply.", 1.0, [{"maths": 1.0}]],
        sized=(
            "tasks.args={kinds: [powers], n: 4, seed: 3}",
            "sampling.max_tokens=12",
            "agent.system=null",
            "agent.format=tags",
            "train.trainable=null",
            "train.lr=1.0e-3",
            PINNED,
        ),
        small=("policies.abstractor={lora: {rank: 4}, train: true, outcome: {maths: 1.0}, sampling: {max_tokens: 8}}",),
        warmed=(
            "tasks.args={kinds: [powers], n: 4, seed: 3}",
            "tools=[]",
            "agent={max_turns: 1, format: tags}",
            "model={scratch: {hidden: 32, layers: 1, heads: 1, vocab_size: 300, max_context: 512}, device: cpu}",
            "warm_start={script: in_the_head, episodes: 16, steps: 60, batch: 4, lr: 1.0e-2}",
            "train.trainable=null",
            PINNED,
            "train.iterations=1",
            "train.groups=1",
            "train.group_size=2",
            "train.minibatch=2",
            "eval=null",
        ),
    ),
    # Of 26 and 27 characters the thoughts are 22: they and the end of each turn are tokens, and 22 / 26 * 27 is 22.8.
    Method(
        "gtr",
        lambda run: run.metric("./task.py:ThoughtCloning_loss"),
        corrected,
        [[(2, "<think>it is behind me</think>right")], [*[0.0] * 23, *[1.0] * 4, *[0.0] * 23, *[1.0] * 5]],
        sized=("warm_start.script=wise", "warm_start.episodes=32", "warm_start.steps=100"),
        small=("policies.corrector={script: corrector}",),
        warmed=None,
    ),
]
