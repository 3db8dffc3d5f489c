"""Methods of 2025 and 2026 that give credit to turns."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch

from agentrl import Say
from agentrl.config.recipe import Recipe
from agentrl.rollouts.builder import build
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.objective import Objective
from agentrl.types.task import Task
from tests.estimators.tables import Member, Step, table_of
from tests.methods.credit import (
    BY_HEART,
    EIGHT,
    HALF,
    after_a_warmup,
    by_token,
    by_trajectory,
    method,
    of,
    part,
    parted,
    rounded,
    said,
)
from tests.methods.curricula import stages_learned
from tests.methods.proofs import Method
from tests.methods.search import HUES, PAGES, Script, sized

# --- RTMC ---------------------------------------------------------------------------------------------------------

# b = 1/3. Q(a, x) = .99 / 2, V'(a) = (.99 + 2/3) / 5, Q(a, y) = 0; Q(b, u) = 1, Q(b, w) = 0, V'(b) = (1 + 2/3) / 4;
# V'(c) = (2/3) / 3. Over the deviation of the six.
TREE = table_of(
    [Member("g", score, [Step("a", 0, 1), Step(then, 0, 1)]) for score, then in ((1, "b"), (0, "b"), (0, "c"))]
).with_columns(action=["x", "u", "x", "w", "y", "u"])
ROOT = (0.99 + 2 / 3) / 5
BRANCHES = np.array([0.495 - ROOT, 7 / 12, 0.495 - ROOT, -5 / 12, -ROOT, -2 / 9])

# --- A2TGPO -------------------------------------------------------------------------------------------------------


def wanders(task: Task, rng: random.Random) -> Script:
    """Searches for the name of the question or for another one, and guesses: half of the answers are right."""
    yield Say(calls=[("search", {"query": rng.choice([task.id, "mi"])})])
    yield Say(calls=[("answer", {"text": rng.choice(HUES)})])


def gain_and_loss(recipe: Recipe) -> list[float]:
    """The recipe's credit of two episodes of three turns, and its loss of their turns: one token each, ratio 1.5."""
    turns = [Step(None, 0, 1)] * 3
    table = table_of([Member("g", 1, turns), Member("g", 0, turns)])
    found = of(recipe, table.with_columns(gold_logprob=np.log([0.1, 0.3, 0.2, 0.1, 0.2, 0.3])))
    scale = None if found.clip_scale is None else torch.tensor(found.clip_scale, dtype=torch.float32)
    logprob, ones, one = torch.zeros(6), torch.ones(6), torch.zeros(6, dtype=torch.long)
    old = logprob - math.log(1.5)
    batch = TokenBatch(logprob, old, old, ones, ones, ones, one, torch.arange(6), one, clip_scale=scale)
    loss, _ = Objective.of(recipe.train.model_copy(update={"kl": None}), recipe.base)(batch)
    return rounded([*found.turn, *loss])


# Gains .2, -.1 and .1, .1: at either depth 1 deviation above and below. Summed: 0 over the root of two terms, then one
# term; a weight of .3. Outcomes: 1 and 0 are 1 deviation from their mean. The range of .2 grows or shrinks by .3 of
# 2 sigmoid(1) - 1 = .4621.
WIDE = 0.2 * (1 + 0.3 * math.tanh(0.5))
NARROW = 0.2 * (1 - 0.3 * math.tanh(0.5))
GAINED = [1, 0.7, 1, -1, -0.7, -1] + [-1 - each for each in (WIDE, NARROW, 0.2, NARROW, WIDE, 0.2)]

# --- SPRO, AEM ----------------------------------------------------------------------------------------------------

# Sums of .05 of the log-ratio: .05, .1 and .15, .15. Means .1 and .125; GRPO beside that.
LOG_RATIOS = said([1, 0], tokens=[2, 2], behaviour_logprob=[-1, -1, -1, -2], ref_logprob=[-2, -2, -4, -2])

# Mean entropies .2, .6, .4: 0, 1, 1/2 between the least and the greatest. The failure knows one entropy.
SURE = table_of([Member("g", score, [Step(None, 0, 1)] * 3) for score in (1, 0)]).with_columns(
    entropy=[0.2, 0.6, 0.4, 0.3, 0.3, 0.3]
)
FALL = np.exp(-np.array([0, 1, 0.5]))

# Rewards of turns 1, 3 and 5, 3: mean 3, deviation the root of 8/3. GRPO beside that.
PREFERRED = table_of([Member("g", score, [Step(None, 0, 1)] * 2) for score in (1, 0)]).with_columns(
    prm_logprob=[-5, -3, -1, -3], behaviour_logprob=[-6] * 4
)
LEAD = 2 / math.sqrt(8 / 3)


def credit_and_pairs(recipe: Recipe) -> list[Any]:
    """The recipe's credit of two episodes, and what its reward model learns from and is compared with."""
    model = recipe.train.reward_model
    return [by_trajectory(PREFERRED)(recipe), None if model is None else [model.objective, model.reference]]


# --- CARL ---------------------------------------------------------------------------------------------------------

# A trunk and a fork at its second turn: after the first, 1/2. Three tokens, of which two have siblings.
FORK = table_of(
    [Member("g", 0, [Step(None, 0, 1)] * 2), Member("g", 1, [Step(None, 0, 0), Step(None, 0, 1)])]
).with_columns(origin=["a", "b", "a", "c"])


def credit_and_forks(recipe: Recipe) -> list[Any]:
    """The recipe's credit of a tree, and how its agent chooses where to fork."""
    agent = build(recipe).make_agent()
    return [by_trajectory(FORK)(recipe), getattr(agent, "by", None)]


# --- Dr. MAS ------------------------------------------------------------------------------------------------------

# The turns of the solver have the outcomes 1, 0, 0: mean 1/3, deviation the root of 1/3. Those of the verifier 1, 0:
# mean 1/2, deviation the root of 1/2.
TRIED = table_of([Member("g", 1, [Step(None, 0, 1)] * 2), Member("g", 0, [Step(None, 0, 1)] * 3)]).with_columns(
    role=["solver", "verifier", "solver", "verifier", "solver"]
)
SOLVED, FAILED = 2 / 3 * math.sqrt(3), -1 / 3 * math.sqrt(3)

METHODS = [
    Method("rtmc", lambda run: part(run, "rtmc", "step"), by_trajectory(TREE), rounded(BRANCHES / BRANCHES.std())),
    Method(
        "a2tgpo",
        lambda run: part(run, "a2tgpo", "gain"),
        gain_and_loss,
        rounded(GAINED),
        sized=sized(
            "guesses", PAGES, f"scripts.shown={__name__}:wanders", "tools.0.k=1", "information_gain.lead=<answer>"
        ),
        warmed=None,
    ),
    method(
        "spro",
        lambda run: part(run, "spro", "process"),
        by_token(LOG_RATIOS),
        [HALF - 0.05, HALF - 0.025, -HALF + 0.05, -HALF + 0.025],
    ),
    Method(
        "aem",
        lambda run: run.metric("largest_modulation"),
        by_trajectory(SURE),
        rounded([*(HALF * FALL / FALL.mean()), -HALF, -HALF, -HALF]),
    ),
    Method(
        "istar",
        lambda run: run.metric("reward_model_loss"),
        credit_and_pairs,
        [rounded([HALF - LEAD, HALF, -HALF + LEAD, -HALF]), ["preference", "policy"]],
        small=("train.reward_model.warmup=1",),
        sized=(*EIGHT, "train.iterations=3"),
        warmed=BY_HEART,
        learns=after_a_warmup,
    ),
    Method(
        "carl",
        lambda run: run.metric("critical_tokens") + parted(run),
        credit_and_forks,
        [[0, -0.75, 0, 0.75], "density"],
        small=("agent.forks=4",),
        sized=EIGHT,
        warmed=BY_HEART,
    ),
    Method(
        "dr-mas",
        lambda run: part(run, "role_grpo", "role"),
        by_trajectory(TRIED),
        rounded([SOLVED, HALF, FAILED, -HALF, FAILED]),
        sized=("warm_start.steps=200", "warm_start.episodes=256", "tasks.args.n=16"),
        warmed=None,
        learns=stages_learned,
    ),
]
