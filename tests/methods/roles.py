"""Methods in which several agents speak in an episode, each with turns and outcomes of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from safetensors.numpy import load_file

import agentrl
from agentrl import Say
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.recipe import Recipe
from agentrl.store.run_dir import RunDir
from agentrl.training.stages.stage import stages_of
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from agentrl.types.trajectory import Trajectory
from tests.estimators.tables import Member, Step, table_of
from tests.methods.credit import by_trajectory, rounded, told
from tests.methods.curricula import by_stage, stages_learned
from tests.methods.played import rewards_of
from tests.methods.proofs import Method, Run
from tests.methods.rewards import FEW, NOTES
from tests.rewards.make import make_episode, turn

# --- games --------------------------------------------------------------------------------------------------------

SMALL_PLAYER = (
    "model={scratch: {hidden: 32, layers: 1, heads: 2, vocab_size: 400, max_context: 1536}, device: cpu}",
    "train.trainable=null", "agent.max_turns=16", "sampling.max_tokens=8",
)  # fmt: skip
"""Overrides of a base for a language model: a model from scratch."""
MOVES = (
    *SMALL_PLAYER, "warm_start={script: random, episodes: 48, steps: 60, batch: 8, lr: 4.0e-3}", "train.lr=1e-3",
    "train.kl={coef: 0.01}", "train.iterations=1", "train.groups=1", "train.group_size=2", "train.minibatch=2",
    "eval=null",
)  # fmt: skip

# Four games of two moves; seat 0 wins three. Rewards less the mean of the role: +-1/2 three times, +-3/2 once; returns
# are the same. Less the mean of a role's distinct values 1/2, -3/2 and 0, which is -1/3: 5/6 and -7/6, and for seat 1
# the opposite. Their sum is 0, and their deviation the root of (6 * 25/36 + 2 * 49/36) / 7. Whitening the rewards
# before that changes their scale alone.
GAMES = table_of(
    [Member("g", won, [Step(None, 0.0, 1), Step(None, -2.0 * won, 1)]) for won in (1.0, 1.0, 1.0, -1.0)]
).with_columns(role=["player 0", "player 1"] * 4, observation_tokens=[0] * 8)
PLAYED = ((6 * 25 + 2 * 49) / 36 / 7) ** 0.5

# --- critics ------------------------------------------------------------------------------------------------------

ACTOR = ("policies.actor={script: actor}", "scripts.actor=../critique-rl/task.py:actor")
SUM = Task.of("t", "What is 2 + 2?", answer="4")


def critique(text: str, first: str, *refined: str) -> Episode:
    """An episode in which a critic said this of the first answer."""
    return make_episode(SUM, turn(text=text), answer=refined[-1], info={"first": first, "refined": [*refined]})


def scores(recipe: Recipe, *episodes: Episode) -> list[float]:
    """What the recipe pays episodes."""

    async def totals() -> list[Any]:
        return [(await rewards_of(recipe).score(each.task, each)).total for each in episodes]

    return rounded(asyncio.run(totals()))


FOUND = critique("<judge>wrong</judge>It is 4.", "5", "4", "5")
MISSED = critique("<judge>right</judge>It is 4.", "5", "5", "5")
DOUBTED = critique("<judge>wrong</judge>It is 4.", "4", "4", "4")
LUCKY = critique("<judge>right</judge>It is 4.", "5", "4", "4")


def critic_stages(recipe: Recipe) -> list[Any]:
    """By stage of reinforcement learning: name, pay of critiques, and if it has a KL term."""
    stages = [each for each in stages_of(recipe) if each.kind == "rl"]
    return [
        (
            each.name,
            scores(each.recipe, FOUND, MISSED, DOUBTED, LUCKY),
            bool(each.recipe.train and each.recipe.train.kl),
        )
        for each in stages
    ]


# --- played by scripts ----------------------------------------------------------------------------------------------


def rolled(recipe: Recipe, script: str, n: int = 1, overrides: Sequence[str] = ()) -> list[Episode]:
    """Episodes that a script plays, in the order of the tasks."""
    folder = Path(mkdtemp(prefix="agentrl-rolled-")) / "run"
    agentrl.rollout(recipe, n, overrides=list(overrides), script=script, out=folder, reporters=())
    return sorted(RunDir.read(folder).episodes(), key=lambda each: each.task.id)


# One planner step with the outcome 1, three with 0: mean 1/4; squares 9/16 + 3/16 over 3, so the deviation is 1/2.
STEPS = table_of([Member("g", 1.0, [Step(None, 0.0, 1)]), Member("g", 0.0, [Step(None, 0.0, 1)] * 3)])


def flow(recipe: Recipe) -> list[Any]:
    """The credit of planner steps; who speaks in an episode of three numbers, and what its memory holds at the end."""
    of_three = rolled(recipe, "oracle", 2)[1]
    memory = of_three.info.get("memory")
    return [by_trajectory(STEPS)(recipe), [each.agent for each in of_three.turns], memory]


def ends(task: Task, rng: random.Random) -> Iterator[Say]:
    """Ends a reply."""
    yield Say(" Bye</answer>")


def begun(recipe: Recipe) -> list[tuple[str, str]]:
    """Returns the words of the guide and those of the policy in each reply; the guide begins all of them."""
    overrides = ["policies.guide={script: guide}", f"scripts.ends={__name__}:ends"]
    share = [] if recipe.agent.use == "tool_agent" else ["agent.share=1"]
    texts = ByteTokenizer().decode
    replies = [
        (Trajectory(each.nodes), each.turns[-1].node) for each in rolled(recipe, "ends", 3, [*overrides, *share])
    ]
    return [(texts(nodes.begun(at)), texts(nodes.nodes[at].token_ids)) for nodes, at in replies]


TALKERS = (
    "agent={use: ../comas/task.py:Discussion, agents: [policy, policy], max_turns: 12, format: tags}",
    "scripts.some=../comas/task.py:some", "model.scratch.max_context=512", "warm_start.script=some",
    "warm_start.episodes=64", "warm_start.steps=150", "train.iterations=1", "train.groups=1", "train.group_size=2",
    "train.minibatch=2", "eval=null",
)  # fmt: skip
"""Overrides of a warm start in which one policy is every agent of a discussion."""
SAID = {"0.0": "<score>3</score>", "0.1": "<score>1</score>", "1.0": "It is <score>2</score>", "1.1": "3, I think"}


def talker(task: Task, rng: random.Random, context: str) -> Iterator[Say]:
    """Solves, evaluates, and gives the scores of `SAID`."""
    act, place = context.split()
    yield Say({"solver": "<answer>1</answer>", "evaluator": "It is wrong.", "scorer": SAID[place]}[act])


def outcomes(of: Episode) -> dict[str, float | None]:
    """The outcome of each act of a discussion."""
    return {name: context.outcome for name, context in sorted(of.contexts.items()) if name != "main"}


def discussed(recipe: Recipe) -> dict[str, float | None]:
    """The outcomes of the acts that `talker` plays."""
    overrides = ["agent.agents=[policy, policy]", f"scripts.talker={__name__}:talker"]
    return outcomes(rolled(recipe, "talker", 1, overrides)[0])


def both_learned(run: Run) -> None:
    """Asserts that both policies took a step with a gradient, and that they are not the same afterwards."""
    lines = [line for line in run.reader.metrics() if "grad_norm" in line]
    assert any(line["grad_norm"] > 0 for line in lines)
    assert any(line["second/grad_norm"] > 0 for line in lines)
    last = run.path / "checkpoints/it-00002"
    before = run.weights(0)
    first, second = (load_file(folder / "model.safetensors") for folder in (last, last / "policies/second"))
    for one, other in ((before, first), (before, second), (first, second)):
        assert any((one[name] != other[name]).any() for name in one)


def component(name: str) -> Callable[[Run], Sequence[Any]]:
    """By episode: a component of its reward."""
    return lambda run: [each.components[name] for each in run.played if name in each.components]


METHODS = [
    Method(
        "mars",
        lambda run: [credit.turn_advantages for credit in told(run, "mars")],
        by_trajectory(GAMES),
        rounded([5 / 6 / PLAYED, -5 / 6 / PLAYED] * 3 + [-7 / 6 / PLAYED, 7 / 6 / PLAYED]),
        sized=SMALL_PLAYER[1:],
        warmed=MOVES,
    ),
    # First 1 for a verdict that is true; then the share of right answers and 0.2 of it.
    Method(
        "critique-rl",
        lambda run: by_stage(run, lambda each: ", ".join(each.components)),
        critic_stages,
        [("judge", [1.0, 0.0, 0.0, 0.0], False), ("help", [0.7, 0.0, 1.0, 1.0], True)],
        sized=(
            *ACTOR,
            "stages.0.sft.steps=200",
            "stages.0.sft.episodes=256",
            "tasks.args.n=16",
        ),
        warmed=None,
        learns=stages_learned,
    ),
    Method(
        "agentflow",
        lambda run: [len(each.info.get("memory", [])) for each in run.played],
        flow,
        [
            [1.5, -0.5, -0.5, -0.5],
            ["planner", "executor", "verifier", "planner", "executor", "verifier", "generator"],
            ["calculate: 4 + 6 -> 10", "calculate: 10 + 4 -> 14"],
        ],
        small=("policies.module={script: module}",),
        sized=("warm_start.steps=200", "warm_start.episodes=256", "tasks.args.n=16"),
        warmed=None,
        learns=stages_learned,
    ),
    # One to seven of the guide's words; the space after them is the policy's.
    Method(
        "rlgf",
        lambda run: [sum(len(node.token_ids) for node in each.nodes if node.kind == "begun") for each in run.played],
        begun,
        [(f"<answer>Dear{words}", " Bye</answer><|im_end|>") for words in (" Cleo,", " Hana, the play", "")],
        small=("agent.share=0.5", "policies.guide={script: guide}"),
        sized=(*FEW, "train.critic.warmup=0"),
        warmed=NOTES,
    ),
    # Scores 3, 1, 2 and none: s = 1, 0, 1/2 for the solution, 1 - s for the evaluation, 0 for a score and -1 for none.
    Method(
        "comas",
        lambda run: [list(outcomes(each).values()) for each in run.played],
        discussed,
        {
            "evaluator 0.0": 0.0,
            "evaluator 0.1": 1.0,
            "evaluator 1.0": 0.5,
            "evaluator 1.1": 0.0,
            "scorer 0.0": 0.0,
            "scorer 0.1": 0.0,
            "scorer 1.0": 0.0,
            "scorer 1.1": -1.0,
            "solver 0.0": 1.0,
            "solver 0.1": 0.0,
            "solver 1.0": 0.5,
            "solver 1.1": 0.0,
        },
        sized=("train.lora.rank=4", "policies.second.lora.rank=4", "train.lr=2e-3", "tasks.args.n=16"),
        warmed=TALKERS,
        learns=both_learned,
    ),
]
