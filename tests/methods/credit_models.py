"""Methods whose credit needs a model's scores, forks or judges."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from agentrl.config.recipe import Recipe
from agentrl.estimators.registry import load_credit
from agentrl.rewards.components import RewardSet
from agentrl.rewards.groups import score_group
from agentrl.rollouts.builder import build
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from tests.estimators.tables import Member, Step, table_of
from tests.methods.credit import BY_HEART, EIGHT, after_a_warmup, by_trajectory, method, part, rounded
from tests.methods.proofs import WARMED, Method, Run
from tests.methods.search import PAGES, sized
from tests.methods.stub_api import Asking, between
from tests.methods.stub_api import said as asked
from tests.rewards.make import make_episode, turn

LONG = (*WARMED, "model.scratch.max_context=320")
"""Overrides of a warm start of a policy whose prompts leave room for a note."""
FOUR = ("tasks.args.n=4",)
TEAM = (
    "warm_start.script=guesser", "warm_start.episodes=64", "warm_start.steps=200", *FOUR,
    "train.iterations=1", "train.groups=1", "train.group_size=2", "train.minibatch=2", "eval=null",
)  # fmt: skip
"""Overrides of a warm start in which one policy learns both roles of a team, on four sums."""


def hindsight(run: Run) -> list[list[float | None]]:
    """By episode: the log-probabilities of its turns once the outcome is known."""
    return [[turn.hindsight_logprob for turn in episode.turns] for episode in run.played]


# --- what a recipe makes of written episodes ------------------------------------------------------------------------

# A success and a failure of two turns. In hindsight the second turn of the success is exp(-5 log 4 / 5) = 1/4 times as
# likely as the first: over their mean 1.6 and 0.4, clipped to 1.2 and 0.8. Q: 1.14 = 1.2 * 0.95 and 0.8; 0 and 0.
# Their mean is 0.485, their deviation sqrt((0.655^2 + 0.315^2 + 2 * 0.485^2) / 3).
TURNS = [Step(None, 0.0, 1)] * 2
KNOWN = table_of([Member("g", 1.0, TURNS), Member("g", 0.0, TURNS)]).with_columns(
    hindsight_logprob=[-1.0, -1.0 - 5 * math.log(4), -2.0, -2.0]
)
SPREAD = math.sqrt((0.655**2 + 0.315**2 + 2 * 0.485**2) / 3)

# Two calculations. To the first there are four answers, one of them wrong; to the second two wrong ones. Calculations:
# 3/4 and 0. Answers: 1 less the mean 2/3 of the others, 0 less 1; 0 less 0.
ANSWERS = table_of([Member("g", score, [Step(None, 0.0, 1)] * 2) for score in (1, 1, 1, 0, 0, 0)]).with_columns(
    origin=[0, 1, 0, 2, 0, 3, 0, 4, 5, 6, 5, 7]
)

SUM = Task.of("sum", "What is 2 + 2?", answer="4", numbers=[2, 2])


def thought(right: bool, alone: bool) -> Episode:
    """A thinker speaks and a solver answers; what the solver answers without it."""
    turns = (turn(agent="thinker", context="thinker", text="2 + 2"), turn(agent="solver", text="<answer>4</answer>"))
    return make_episode(SUM, *turns, answer="54"[right], info={"without": {"thinker": "54"[alone]}})


def planned(right: bool, **alone: bool) -> Episode:
    """A planner asks a worker and answers; what is answered without either."""
    said = "<answer>4</answer>"
    planner, worker = turn(agent="planner", text="Add."), turn(agent="worker", context="worker", text=said)
    without = {name: "54"[value] for name, value in alone.items()}
    last = turn(agent="planner", text=said)
    return make_episode(SUM, planner, worker, last, answer="54"[right], info={"without": without})


def searched(answer: str) -> Episode:
    """A search that shows nothing, and an answer."""
    found = turn(observations=[{"role": "tool", "content": "?"}])
    return make_episode(Task.of("q", "Which hue?", answer=["red"]), found, turn(), answer=answer)


async def doubling(episode: Episode, answers: Sequence[str], lead: str) -> list[list[float | None]]:
    """Every turn doubles the probability of an answer: 1/4, 1/2, 1."""
    return [[math.log(0.25 * 2**moment)] * len(answers) for moment in range(len(episode.turns) + 1)]


# Two of three answer red: q is 2/3, and 1/3 for blue. Gains of log 2 for each turn, and q / 2 for the last; normalised
# over all turns, and summed with the next turn's.
GAINS = np.array([q * gain for q in (2 / 3, 2 / 3, 1 / 3) for gain in (math.log(2), math.log(2) + 0.5)])
NORMAL = (GAINS - GAINS.mean()) / (math.sqrt(((GAINS - GAINS.mean()) ** 2).sum() / 5) + 1e-4)


def shared(*group: Episode) -> Callable[[Recipe], list[float]]:
    """What the rewards and the credit of a recipe give to the turns of a group."""

    async def scored(rewards: RewardSet) -> list[Episode]:
        own = [score.onto(each) for each in group for score in [await rewards.score(each.task, each)]]
        named = [msgspec.structs.replace(each, id=f"g#{k}") for k, each in enumerate(own)]
        if not rewards.of_group:
            return named
        return [
            score.onto(each)
            for score, each in zip(await score_group(rewards, named, beliefs=doubling), named, strict=True)
        ]

    def found(recipe: Recipe) -> list[float]:
        credits, _ = load_credit(recipe.credit, recipe.base).assign(asyncio.run(scored(build(recipe).rewards)))
        return rounded(advantage for credit in credits for advantage in credit.turn_advantages)

    return found


def of_groups(name: str) -> Callable[[Run], list[list[float | None]]]:
    """By episode: a component of its turns, as its group decided it."""

    def found(run: Run) -> list[list[float | None]]:
        scores = [(run.reader.group_scores(episode.id), episode) for episode in run.played]
        return [[turn.rewards.get(name) for turn in s.of(episode).turns] for s, episode in scores if s is not None]

    return found


def criticised(body: Any) -> str:
    """Two criteria, which go by the form of the turns: each cites those that it is about."""
    text = asked(body)
    if '"criteria"' in text:
        return json.dumps({"criteria": ["It computes.", "It answers."]})
    turns = re.split(r"\[turn \d+\]", between(text, "transcript"))[1:]
    verdicts = [[k for k, each in enumerate(turns) if mark in each] for mark in ("</calculate>", "</answer>")]
    return json.dumps({"verdicts": [["pass", cited] if cited else ["fail", [len(turns) - 1]] for cited in verdicts]})


# A winner of 1/sqrt 2 with turns of quality 1 and 1/2, of 2 and 4 tokens: 6 / (2 * 1.5) and 6 * 0.5 / (4 * 1.5) times
# that. A loser with 1 and 0, of 1 and 3 tokens: all on the second, 4 / 3 times.
JUDGED = table_of(
    [Member("g", 1, [Step(None, 0, 2), Step(None, 0, 4)]), Member("g", 0, [Step(None, 0, 1), Step(None, 0, 3)])]
).with_columns(process=[1, 0.5, 1, 0])

# Log-ratios of two turns of two tokens: means 0.3 and 0.1; -0.2 and -0.2. Their mean is 0, their squares sum to 0.18.
RATIOS = table_of([Member("g", score, [Step(None, 0, 2)] * 2) for score in (1, 0)]).with_columns(
    ref_logprob=[-1.0] * 8, prm_logprob=[-0.8, -0.6, -1, -0.8, -1.2, -1.2, -1.4, -1.0]
)

METHODS = [
    Method(
        "hcapo",
        hindsight,
        by_trajectory(KNOWN),
        rounded(
            [
                math.sqrt(0.5) + 0.655 / SPREAD,
                math.sqrt(0.5) + 0.315 / SPREAD,
                *[-math.sqrt(0.5) - 0.485 / SPREAD] * 2,
            ]
        ),
        warmed=LONG,
    ),
    method(
        "c3",
        lambda run: part(run, "c3", "counterfactual"),
        by_trajectory(ANSWERS),
        [*[3 / 4, 1 / 3] * 3, 3 / 4, -1, -3 / 4, 0, -3 / 4, 0],
    ),
    # Alone the solver is right in one of four: the thinker helped where the answer is right, and gets 1.1 there.
    Method(
        "ccpo",
        lambda run: [episode.info.get("without") for episode in run.played],
        shared(thought(True, False), thought(True, False), thought(False, False), thought(False, True)),
        [0.55, 0.5, 0.55, 0.5, -0.55, -0.5, -0.55, -0.5],
        sized=FOUR,
        warmed=TEAM,
    ),
    # Planner: 1 + 0 + 0.2, 1 + 0.5 + 0.2, 0.2; worker: 1 + 0.5 + 0.1, 1 + 0 + 0.1, 0.1. Both are 1/6, 2/3 and -5/6
    # from their mean in some order, over the deviation sqrt(7 / 12).
    Method(
        "sharp",
        of_groups("marginal"),
        shared(
            planned(True, planner=True, worker=False),
            planned(True, planner=False, worker=True),
            planned(False, planner=False, worker=False),
        ),
        rounded(each / math.sqrt(7 / 12) for each in (1 / 6, 2 / 3, 1 / 6, 2 / 3, 1 / 6, 2 / 3, *[-5 / 6] * 3)),
        sized=FOUR,
        warmed=TEAM,
    ),
    Method(
        "siop",
        of_groups("potential"),
        shared(*map(searched, ("red", "red", "blue"))),
        rounded(np.stack([NORMAL[::2] + NORMAL[1::2], NORMAL[1::2]], 1).ravel()),
        sized=sized("guesses", PAGES, "tools.0.k=1", "rewards.potential.lead=<answer>"),
        warmed=None,
    ),
    Asking(
        "draco",
        of_groups("process"),
        by_trajectory(JUDGED),
        rounded(each * math.sqrt(0.5) for each in (2, 0.5, 0, -4 / 3)),
        sized=EIGHT,
        warmed=BY_HEART,
        answer=criticised,
        asks=("rewards.rubric.judge",),
    ),
    Method(
        "sweet-rl",
        lambda run: part(run, "sweet", "critic"),
        by_trajectory(RATIOS),
        rounded(each / math.sqrt(0.06) for each in (0.3, 0.1, -0.2, -0.2)),
        small=("train.reward_model.warmup=1",),
        sized=(*EIGHT, "train.iterations=3"),
        warmed=BY_HEART,
        learns=after_a_warmup,
    ),
]
