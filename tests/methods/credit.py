"""Methods that give credit in another way."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

import agentrl
from agentrl.config.recipe import Recipe
from agentrl.estimators.estimator import Advantages
from agentrl.estimators.history import History
from agentrl.estimators.registry import load_credit
from agentrl.estimators.table import CreditTable
from agentrl.rewards.components import RewardSet
from agentrl.rewards.groups import score_group
from agentrl.rollouts.builder import build
from agentrl.rollouts.passes import passes
from agentrl.store.codec import StoredCredit
from agentrl.store.run_dir import RunDir
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.objective import Objective
from agentrl.types.episode import CallRecord, Episode
from agentrl.types.task import Task
from tests.estimators.tables import Member, Step, table_of
from tests.methods.proofs import SMALL, Method, Run, learned, warm
from tests.methods.stub_api import Asking, between
from tests.methods.stub_api import said as asked
from tests.methods.written import credited
from tests.rewards.make import call, make_episode, turn

EIGHT = ("tasks.args.n=8",)
BY_HEART = (
    "warm_start.script=oracle", "warm_start.episodes=8", "warm_start.steps=120", "warm_start.batch=8", *EIGHT,
    "train.iterations=1", "train.groups=1", "train.group_size=2", "train.minibatch=2", "eval=null",
)  # fmt: skip
"""Overrides of a warm start on eight sums: some of what it then says is right."""

# --- what a run has -------------------------------------------------------------------------------------------------


def told(run: Run, estimator: str) -> list[StoredCredit]:
    """The credit of the episodes that trained, if this estimator gave it."""
    credits = [run.reader.credit(episode.id) for episode in run.played]
    return [found for found in credits if found is not None and found.estimator == estimator]


def verdicts(run: Run) -> list[bool]:
    """By episode that failed or succeeded: True if every turn of it has the credit -1, as no other estimator gives."""
    credits = [run.reader.credit(episode.id) for episode in run.played]
    return [set(found.turn_advantages) == {-1.0} for found in credits if found is not None]


def gaps(run: Run, estimator: str) -> list[float]:
    """By group: how far apart the credits of members with equal scores are. GRPO and its like give them the same."""
    scores = {episode.id: (episode.group_id, episode.reward) for episode in run.played}
    found: dict[Any, dict[Any, list[float]]] = {}
    for credit in told(run, estimator):
        group, score = scores[credit.episode_id]
        found.setdefault(group, {}).setdefault(score, []).append(credit.turn_advantages[0])
    return [max(max(equal) - min(equal) for equal in group.values()) for group in found.values()]


def widths(run: Run, estimator: str) -> list[float]:
    """By group: the credit of the best member less that of the worst."""
    groups = {episode.id: episode.group_id for episode in run.played}
    found: dict[Any, list[float]] = {}
    for credit in told(run, estimator):
        found.setdefault(groups[credit.episode_id], []).append(credit.turn_advantages[0])
    return [max(credits) - min(credits) for credits in found.values()]


def part(run: Run, estimator: str, name: str) -> list[list[float]]:
    """By episode: one of the summands of its turns' credit."""
    return [credit.parts[name] for credit in told(run, estimator)]


# --- what a recipe makes of written episodes ------------------------------------------------------------------------


def of(recipe: Recipe, table: CreditTable) -> Advantages:
    """The recipe's credit of a table."""
    return load_credit(recipe.credit)(table)


def rounded(values: Any) -> list[float]:
    return [round(float(value), 3) + 0.0 for value in values]


def said(scores: Sequence[float], groups: str = "", tokens: Sequence[int] = (), **columns: Any) -> CreditTable:
    """Episodes of one turn: their scores, the letters of their groups, their lengths."""
    names, lengths = groups or "g" * len(scores), tokens or [1] * len(scores)
    members = [Member(g, s, [Step(None, 0.0, n)]) for g, s, n in zip(names, scores, lengths, strict=True)]
    return table_of(members).with_columns(**columns)


def by_trajectory(table: CreditTable) -> Any:
    """What a recipe makes of a table of one-turn episodes, rounded."""
    return lambda recipe: rounded(of(recipe, table).turn)


def by_token(table: CreditTable) -> Any:
    """The same for each token, if the recipe tells them apart."""

    def found(recipe: Recipe) -> list[float]:
        advantages = of(recipe, table)
        return rounded(advantages.turn[table.token_turn] if advantages.token is None else advantages.token)

    return found


# Means 1/4 and 3/4: m = 1/2, v = 1/8, so c = (1/4) / (1/8) - 1 = 1, and both parameters are 1 + 1 * (1/2) / 3 = 7/6.
# At both means the density is (1/4 * 3/4)^(1/6) / B, B = gamma(7/6)^2 / gamma(7/3).
BETA = math.gamma(7 / 6) ** 2 / math.gamma(7 / 3) / (3 / 16) ** (1 / 6)
HARD_AND_EASY = said([1, 0, 0, 0, 1, 1, 1, 0], "aaaabbbb")

# Surprise 1, 2, 3, 4. Low half: 1, 0 (mean 1/2); high half: 1, 1 (mean 1). Low: S - 1; high: S - 1/2.
HALVES = said([1, 0, 1, 1], behaviour_logprob=[-1, -2, -3, -4])

# Two tasks, bundles (1, 1) and (0, 0): sums 2 and 0, quantiles 0.4 and 1.6 at 0.2 and 0.8.
# Sum 2: (1.6 - 0.4 - 1.2) / 0.6 = 0. Sum 0: middle -1.2 / 0.6 = -2, tail -0.4 / 0.2 = -2: (1.5 * -2 - 2) / 2.5 = -2.
# Over the deviation of (0, -2), sqrt 2; either member of the second bundle has half of it.
BUNDLES = said([1, 0, 1, 0], "aabb")

# Both groups agree on an answer, one on a wrong one: entropy 0, so that the weight of the group's own baseline is
# sigmoid(-30) = 0. Means 0 and 1 among the groups: -+1/2 over their deviation, sqrt(1/2).
AGREED = said([0, 0, 1, 1], "aabb", answer=["5", "5", "7", "7"])

# Likely, less likely, least likely: ranks 2, 1, 0 of 3. Scores 1 * (1 - 1/6), 1 * (1 - 1/12), 0: mean 7/12.
# Centred 3/12, 4/12, -7/12: squares 9 + 16 + 49 = 74 of 144, over 2.
UNLIKELY = said([1, 1, 0], behaviour_logprob=[-1, -2, -3])
SPREAD = math.sqrt(74 / 144 / 2)

# Five tokens, ceil(0.2 * 5) = 1 of them is kept: the second. GRPO gives 1 and 0 +-1/sqrt 2; 5 tokens for one kept.
UNSURE = said([1, 0], tokens=[3, 2], entropy=[0.1, 0.9, 0.2, 0.3, 0.4])

# The reward model likes the second token by 1 more than the reference does: 0.05, mean of the episode 0.025.
# Leave one out of two: 2 r - 0.025, which is -0.025, 0.075; -0.025, -0.025. Sums over later tokens 0.05, 0.075; -0.05,
# -0.025, and the outcome 5 (2 R - 1) = +-5. Less their mean 0.0125, over their deviation.
PROCESS = said([1, 0], tokens=[2, 2], prm_logprob=[-1, 0, -1, -1], ref_logprob=[-1, -1, -1, -1])
LIKED = np.array([5.0375, 5.0625, -5.0625, -5.0375]) / math.sqrt(2 * (5.0375**2 + 5.0625**2) / 3)

# GiGPO: 1 and 0 are +-1/sqrt 2 as episodes. Both act in state a, with returns 0.95 and 0: +-1/sqrt 2 again.
STATES = table_of(
    [Member("g", 1, [Step("a", 0, 1), Step("b", 0, 1)]), Member("g", 0, [Step("a", 0, 1), Step("c", 0, 1)])]
)
HALF = math.sqrt(1 / 2)

# GAGPO: V(a) = (0.95 + 0 + 0) / 3, V(b) = (1 + 0) / 2, V(c) = 0. Differences: a to b 0.95/2 - 0.95/3, to c -0.95/3;
# in b +-1/2, in c 0. Of what comes after, 0.95 * 0.4 = 0.38 is added. They sum to 0, over their deviation.
WALKS = table_of(
    [Member("g", score, [Step("a", 0, 1), Step(then, 0, 1)]) for score, then in ((1, "b"), (0, "b"), (0, "c"))]
)
CHANGED = np.array([0.95 / 6 + 0.19, 0.5, 0.95 / 6 - 0.19, -0.5, -0.95 / 3, 0])
# Tokens of two turns, of ratios 4, 1 and 0.5, 0.72: their geometric means are 2, beyond the clip, and 0.6.
TURNED = [-1.2, -1.2, -0.6, -0.6]


def credit_and_loss(recipe: Recipe) -> list[float]:
    """What the recipe makes of three walks, and its loss of four tokens with the advantage 1."""
    ratio, ones, one = torch.tensor([4, 1, 0.5, 0.72]), torch.ones(4), torch.zeros(4, dtype=torch.long)
    logprob = torch.full((4,), -2.0)
    old, turn_of = logprob - ratio.log(), torch.tensor([0, 0, 1, 1])
    batch = TokenBatch(logprob, old, old, ones, ones, ones, one, turn_of, one)
    loss, _ = Objective.of(recipe.train.model_copy(update={"kl": None}), recipe.base)(batch)
    return rounded([*of(recipe, WALKS).turn.tolist(), *loss.tolist()])


# TEMPO: three episodes of two tokens; the first two begin alike. The mean score of those with the same tokens so far:
# 1/3, 1/2, 1; 1/3, 1/2, 0; 1/3, 0, 0. GRPO's advantage plus the changes, over the deviation sqrt(1/3).
FORKED = dataclasses.replace(
    said([1, 0, 0], tokens=[2, 2, 2]),
    history=lambda: History([np.array([5, 1]), np.array([5, 2]), np.array([6, 2])], np.array([0, 1, 0, 1, 0, 1])),
)
CHANGES = [2 / 3 + 1 / 6, 2 / 3 + 1 / 2, -1 / 3 + 1 / 6, -1 / 3 - 1 / 2, -1 / 3 - 1 / 3, -1 / 3]


def method(
    name: str, fires: Callable[[Run], Sequence[Any]], bites: Any, expected: Sequence[float], **more: Any
) -> Method:
    """A method on sums with a calculator. Its policy has learned eight of them by heart, not too well."""
    return Method(name, fires, bites, rounded(expected), sized=EIGHT, warmed=BY_HEART, **more)


def component(name: str) -> Callable[[Run], Sequence[Any]]:
    """By episode: a component of its reward, as its group decided it."""

    def found(run: Run) -> list[float | None]:
        scores = [run.reader.group_scores(episode.id) for episode in run.played]
        scored = [each.of(episode) for each, episode in zip(scores, run.played, strict=True) if each is not None]
        return [episode.components[name] for episode in scored if name in episode.components]

    return found


SUM = Task.of("t", "Compute 2 + 2.", answer="4")


def replied(answer: str | None, tokens: int = 1, *calls: CallRecord, task: Task = SUM) -> Episode:
    """An episode of one turn that made these calls."""
    return make_episode(task, turn(*calls), answer=answer, tokens=tokens)


def paid(*group: Episode) -> Callable[[Recipe], list[float]]:
    """What a recipe pays the members of a group."""

    async def totals(recipe: Recipe) -> list[Any]:
        rewards = RewardSet.from_recipe(
            {name: each.spec for name, each in recipe.rewards.items()},
            recipe.base,
            recipe.gate,
            recipe.reward_of,
            recipe.success,
        )
        alone = [(await rewards.score(each.task, each)).onto(each) for each in group]
        return [score.total for score in await score_group(rewards, alone)]

    return lambda recipe: rounded(asyncio.run(totals(recipe)))


# Scores 1, 0 and 1, 1: mean 3/4, deviation 1/2.
EASIER = said([1, 0, 1, 1], "aabb")

# Of two groups one in five, so one, counts length: a, where both are right. 1 and 3 tokens are +-1/sqrt 2 deviations
# from their mean. The scores 1 - 0.2 sigmoid(+-0.7071) then are +-1/sqrt 2 of their deviation: GRPO divides by it.
LONG = said([1, 1, 1, 0], "aabb", tokens=[1, 3, 1, 3])

# With the calculator 1 of 2 is right, without it 0 of 2: it pays 0.5. Lengths of 24 and 48 and more: 0.05 and 0.1.
HELPED = paid(
    replied("4", 24, call("calculate")), replied("5", 48, call("calculate")), replied("5", 48), replied("6", 96)
)

# Shares 1/2, 1/2, 1/4 and, without an answer, 0; entropy 1.5 ln 2 for all.
VOTED = paid(replied("4"), replied("4.0"), replied("5"), replied(None))


def moved(run: Run) -> list[list[bool]]:
    """By episode: which of its moves did something."""
    return [[turn.executed for turn in episode.turns] for episode in run.played]


def after_a_warmup(run: Run) -> None:
    """Asserts that in the first iteration only the other model learned, and the policy in the next two."""
    first, *_ = [line for line in run.reader.metrics() if line.get("split") == "train"]
    assert sum(first.get(f"{name}_loss", 0) for name in ("progress", "value", "reward_model")) > 0
    assert "grad_norm" not in first
    learned(run)


class Recorded(Method):
    """A method on stored data: the policy that begins plays it, before the training."""

    def play(self, folder: Path, profile: str | None = None) -> Run:
        began = warm(self.base, self.warmed or ())
        policy = [f"model={{path: {began}, device: cpu}}", "warm_start=null"]
        overrides = [*SMALL, *policy, *self.sized, *self._small(profile)]
        stored = folder.with_name(f"{folder.name}-stored")
        agentrl.rollout(self.name, 16, group_size=4, overrides=overrides, profile=profile, out=stored, reporters=())
        how: Any = {"overrides": overrides, "profile": profile, "from_run": stored, "passes": 3, "reporters": ()}
        agentrl.train(self.name, out=folder, **how)
        return Run(folder, RunDir.read(folder), began)


# Rewards 0.2 + 0.5, 0.3, 0.1 + 0.5: returns 1.6, 0.9, 0.6 where the critic says 0. Mean 31/30; off it by 17/30, -4/30,
# -13/30, squares 474/900, over 2.
ATTRIBUTED = table_of([Member("g", 1, [Step(None, 0.0, 1)] * 3)]).with_columns(
    progress=[0.2, 0.3, 0.1], executed=[1, 0, 1], value=[0, 0, 0]
)
# The critic expects 0.4 of each prompt. The second episode was worse than that.
LEFTOVER = said([1, 0], tokens=[2, 1], value=[0.4, 9, 0.4])

STEPS = np.array([17, -4, -13]) / math.sqrt(474 / 2)


def marked(body: Any) -> str:
    """The critique of a strict reader: a turn is wrong that neither computes nor answers."""
    turns = re.split(r"\[turn \d+\]", between(asked(body), "transcript"))[1:]
    wrong = [number for number, each in enumerate(turns) if "</calculate>" not in each and "</answer>" not in each]
    return json.dumps({"wrong": wrong})


def shorter(body: Any) -> str:
    """The verdict of a reader who prefers what is shorter."""
    a, b = (len(between(asked(body), f"answer_{name}")) for name in "ab")
    return json.dumps({"better": "tie" if a == b else "A" if a < b else "B"})


# Rewards 2, 1 (the critiques agree on the second turn); 0, 0. Mean 3/4; each token of a trajectory counts half:
# (1/2) (25/16 + 1/16 + 9/16 + 9/16) = 11/8, over 2 - 1.
CRITIQUED = table_of([Member("g", 1, [Step(None, 0.0, 1)] * 2), Member("g", 0, [Step(None, 0.0, 1)] * 2)]).with_columns(
    wrong=[0, 1, 0.75, 0]
)
MARKED = np.array([5 / 4, 1 / 4, -3 / 4, -3 / 4]) / math.sqrt(11 / 8)


def parted(run: Run) -> list[int]:
    """By fork: the turn at which it left its path."""
    return [episode.parent.turn for episode in run.played if episode.parent is not None]


# Two trees of two: 1, 0 and 0, 0. Against all four 3/4, -1/4, -1/4, -1/4; against those with the same first turn 1/2,
# -1/2, 0, 0. The means of both, 5/8, -3/8, -1/8, -1/8, over their deviation: squares 36/64 for each of two turns.
TREES = table_of([Member("g", score, [Step(None, 0.0, 1)] * 2) for score in (1, 0, 0, 0)]).with_columns(
    action=["a", "b", "a", "c", "d", "e", "d", "f"]
)
AGAINST = np.repeat([5 / 8, -3 / 8, -1 / 8, -1 / 8], 2) / math.sqrt(2 * 36 / 64 / 7)


def within(run: Run) -> list[float]:
    """The share of tasks solved within 1, 2 and 4 tries, before and after."""
    return [share for k in (1, 2, 4) for share in run.metric(f"pass@{k}")]


def tried(recipe: Recipe) -> list[float]:
    """The same of two tasks: one is solved in 1 of 4 tries, the other in all."""
    results = [("a", 1.0), ("a", 0.0), ("a", 0.0), ("a", 0.0), *[("b", 1.0)] * 4]
    played = [
        msgspec.structs.replace(replied("4"), id=str(n), group_id=g, reward=r) for n, (g, r) in enumerate(results)
    ]
    found = passes(played, recipe.eval.k if recipe.eval else 1)
    return rounded([share for name, share in found.items() if name.startswith("pass@")])


def graded(run: Run) -> list[Any]:
    """By episode of an evaluation: the policy's solutions, and what it said of them."""
    played = [episode for episode in run.reader.episodes() if episode.split == "eval"]
    return [[episode.info["solutions"], episode.info["grades"]] for episode in played if "grades" in episode.info]


def voted(recipe: Recipe) -> list[str | None]:
    """What the recipe's agent answers, by its solutions and whether it finds them right; without grades, the first."""
    agent = build(recipe).make_agent()
    cases = [(["5", "5", "4", "4"], [True, False, True, True]), (["5", "5", "4", None], [False] * 4), ([None], [True])]
    choose = getattr(agent, "chosen", lambda answers, accepted: answers[0])
    return [choose(*case) for case in cases]


def lost(recipe: Recipe) -> list[float]:
    """The recipe's loss of three tokens, and the gradient of each."""
    ratio, advantage = torch.tensor([1.5, 0.5, 1.5]), torch.tensor([1.0, 1.0, -1.0])
    logprob, ones = torch.full((3,), -2.0, requires_grad=True), torch.ones(3)
    old, index = logprob.detach() - ratio.log(), torch.zeros(3, dtype=torch.long)
    batch = TokenBatch(logprob, old, old, advantage, ones, ones, index, index, index)
    loss, _ = Objective.of(recipe.train.model_copy(update={"kl": None}), recipe.base)(batch)
    loss.sum().backward()
    return rounded([*loss.tolist(), *(logprob.grad if logprob.grad is not None else ones).tolist()])


METHODS = [
    # The turn that both a-b episodes share has the mean of 2/3 and -1/3; c is of one episode.
    Method("salt", lambda run: run.metric("merged_edges"), credited, [0.167, 0.167, 0.167, 0.167, -0.333]),
    Method("negative-reinforcement", verdicts, credited, [0.0, 0.0, -1.0, -1.0, -1.0]),
    Method(
        "gigpo",
        lambda run: part(run, "gigpo", "step"),
        by_trajectory(STATES),
        rounded([2 * HALF, HALF, -2 * HALF, -HALF]),
    ),
    Method(
        "gagpo",
        lambda run: part(run, "gagpo", "step"),
        credit_and_loss,
        rounded([*(CHANGED / math.sqrt((CHANGED**2).sum() / 5)), *TURNED]),
    ),
    method(
        "bnpo",
        lambda run: widths(run, "bnpo"),
        by_trajectory(HARD_AND_EASY),
        [BETA * each for each in [0.75, -0.25, -0.25, -0.25, 0.25, 0.25, 0.25, -0.75]],
    ),
    method("canon", lambda run: gaps(run, "canon"), by_trajectory(HALVES), [0, -1, 0.5, 0.5]),
    method("riskpo", lambda run: gaps(run, "riskpo"), by_trajectory(BUNDLES), [0, -HALF, 0, -HALF]),
    method("copo", lambda run: part(run, "copo", "global"), by_trajectory(AGREED), [-HALF, -HALF, HALF, HALF]),
    method(
        "unlikeliness",
        lambda run: gaps(run, "unlikeliness"),
        by_trajectory(UNLIKELY),
        [3 / 12 / SPREAD, 4 / 12 / SPREAD, -7 / 12 / SPREAD],
    ),
    method("high-entropy-tokens", lambda run: run.metric("entropy_border"), by_token(UNSURE), [0, 5 * HALF, 0, 0, 0]),
    method(
        "w-reinforce",
        lambda run: [c.turn_advantages for c in told(run, "w_reinforce")],
        by_trajectory(said([1, 0])),
        [0.1, -1],
    ),
    # The mean 1/2 less 0.1; in the group without variance 0.1 for all.
    method(
        "asymre",
        lambda run: [c.turn_advantages for c in told(run, "asymre")],
        by_trajectory(said([1, 0, 1, 1], "aabb")),
        [0.6, -0.4, 0.1, 0.1],
    ),
    Method(
        "implicit-prm",
        lambda run: run.metric("reward_model_loss"),
        by_token(PROCESS),
        rounded(LIKED),
        small=("train.reward_model.warmup=1",),
        sized=(*EIGHT, "train.iterations=3"),
        warmed=BY_HEART,
        learns=after_a_warmup,
    ),
    method(
        "tempo",
        lambda run: part(run, "tempo", "branch"),
        by_token(FORKED),
        [each / math.sqrt(1 / 3) for each in CHANGES],
    ),
    method("lite-ppo", lambda run: widths(run, "lite_ppo"), by_trajectory(EASIER), [1, -1, 0, 0]),
    method("grpo-lambda", lambda run: run.metric("length_counts"), by_trajectory(LONG), [HALF, -HALF, HALF, -HALF]),
    method("gcpo", component("contrast"), HELPED, [1.55, 0.6, 0.1, 0.1]),
    method("ttrv", component("frequency"), VOTED, [share - 1.125 * math.log(2) for share in (0.5, 0.5, 0.25, 0)]),
    Method(
        "spa",
        moved,
        by_token(ATTRIBUTED),
        rounded(STEPS),
        small=("train.critic.warmup=1",),
        sized=("train.iterations=3",),
        learns=after_a_warmup,
    ),
    Recorded(
        "a-lol",
        lambda run: run.metric("kept_episodes") + run.metric("value_loss"),
        by_trajectory(LEFTOVER),
        [0.6, 0.0],
        small=("train.critic.warmup=1",),
        sized=(*EIGHT, "train.iterations=3"),
        warmed=BY_HEART,
        learns=after_a_warmup,
    ),
    Asking(
        "capo",
        lambda run: [[turn.rewards["wrong"] for turn in episode.turns] for episode in run.played],
        by_token(CRITIQUED),
        rounded(MARKED),
        sized=EIGHT,
        warmed=BY_HEART,
        answer=marked,
        asks=("rewards.wrong.judge",),
    ),
    # Two won, one, none: mean 1/2, deviation 1/2. The outcomes say the opposite.
    Asking(
        "pref-grpo",
        component("win_rate"),
        by_trajectory(said([0, 0, 1], win_rate=[1, 0.5, 0])),
        [1.0, 0.0, -1.0],
        sized=EIGHT,
        warmed=BY_HEART,
        answer=shorter,
        asks=("rewards.win_rate.judge",),
    ),
    method("treepo", parted, by_trajectory(TREES), AGAINST),
    # Of task a, two of four tries miss the right one in 3 of 6 pairs.
    method("limit-of-rlvr", within, tried, [5 / 8, 3 / 4, 1], small=("eval={episodes: 16, k: 4, tasks: null}",)),
    # Of the accepted 5, 4, 4 most are 4; without an accepted one all count.
    Method(
        "self-prm",
        graded,
        voted,
        ["4", "5", None],
        sized=(*EIGHT, "eval={episodes: 8, tasks: null}"),
        warmed=(*BY_HEART, "model.scratch.max_context=1024"),
    ),
    # The first token has moved too far and is left out; the others are -A l, without the ratio.
    method(
        "rec-one-side",
        lambda run: [each.turn_advantages for each in told(run, "dr_grpo")],
        lost,
        [0, 2, -2, 0, -1, 1],
    ),
]
