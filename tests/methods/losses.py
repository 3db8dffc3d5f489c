"""Methods that train on another loss, or compare the policy with another one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from agentrl.config.recipe import Recipe
from agentrl.curriculum import CreditedEpisode
from agentrl.estimators.registry import EpisodeCredit
from agentrl.rewards.groups import score_group
from agentrl.rollouts.builder import build
from agentrl.training.batch.kl_reward import with_kl_reward
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.objective import Objective
from agentrl.training.trainer import Trainer
from agentrl.types.episode import Episode, Node, Parent, Turn
from agentrl.types.sample import untrained_samples
from agentrl.types.task import Task
from tests.estimators.tables import Member, Step, run, table_of
from tests.methods.proofs import WARMED, Method, Run, warm
from tests.rewards.make import make_episode, turn
from tests.training.make import llama, make_rows


def steps(run: Run, name: str) -> list[float]:
    """A metric of the updates."""
    return [round(line[name], 6) for line in run.reader.metrics() if line.get("split") == "train" and name in line]


def above(run: Run, least: float) -> list[float]:
    """The losses of the updates that are above a number, as those of a policy gradient never are."""
    return [value for value in steps(run, "loss") if value > least]


def told(recipe: Recipe, kl: bool = False, **columns: list[Any]) -> list[float]:
    """The loss of tokens that are written by hand. Each token is an episode, unless `episode` is given."""
    n = len(columns["logprob"])
    given = {"old_logprob": columns["logprob"], "advantage": [0.0] * n, "reward": [0.0] * n, **columns}
    indices = {"episode": list(range(n)), "group": [0] * n}
    flat = {name: torch.tensor(given.pop(name, own)) for name, own in indices.items()}
    floats = {name: torch.tensor(values, dtype=torch.float32) for name, values in given.items()}
    batch = TokenBatch(
        behaviour_logprob=floats["old_logprob"], weight=torch.full((n,), 1 / n), turn=flat["episode"], **floats, **flat
    )
    assert recipe.train is not None
    train = recipe.train if kl else recipe.train.model_copy(update={"kl": None})
    objective = Objective.of(train, recipe.base)
    return [round(value, 4) for value in objective(batch)[0].tolist()]


def outcomes(recipe: Recipe) -> list[float]:
    """The losses of a right episode, whose two tokens are now likelier by 0.2 and 0.1, and of a wrong one of one token,
    which is less likely by 0.1."""
    return told(
        recipe,
        logprob=[-1.0, -1.0, -1.0],
        old_logprob=[-1.2, -1.1, -0.9],
        advantage=[1.0, 1.0, -1.0],
        reward=[1.0, 1.0, 0.0],
        episode=[0, 0, 1],
    )


def levels(recipe: Recipe) -> list[float]:
    """The losses of three episodes of one token, with rewards 1, 0.5 and 0, and log-ratios 0.5, 0 and -0.3 to the
    reference."""
    logprob, rewards = [-1.0, -1.0, -2.0], [1.0, 0.5, 0.0]
    return told(recipe, logprob=logprob, ref_logprob=[-1.5, -1.0, -1.7], reward=rewards, advantage=[1.0, 0.0, -1.0])


def posterior(recipe: Recipe) -> float:
    """The outcome that credit reads, of an episode with reward 1 whose tokens lie 0.5 and 0.4 above the reference."""
    nodes = [Node(parent=-1, kind="prompt", token_ids=[1])]
    nodes.append(Node(parent=0, kind="sampled", token_ids=[2, 3], logprobs=[-1.0, -1.0]))
    turns = [Turn(index=0, node=1, text="", finish="stop")]
    task = Task.of("t", "go")
    played = Episode(id="g/e", group_id="g", task=task, status="done", nodes=nodes, turns=turns, reward=1.0)
    samples, own = untrained_samples(played), np.array([0.0, -1.0, -1.0], np.float32)
    assert recipe.train is not None
    settings = recipe.train.kl
    if settings is None or settings.place != "reward":
        return 1.0
    theirs, place = own - np.array([0.0, 0.5, 0.4], np.float32), build(recipe).credit.penalty_place()
    (seen,) = with_kl_reward([played], samples, [own], [theirs], settings, place).episodes
    return round(seen.reward or 0.0, 3)


def consistent(recipe: Recipe) -> list[float]:
    """The credit of three episodes with two turns, one, and one: two are right, and the answer of the first is likely
    under the reference after what it did."""
    members = [
        Member("g", 1.0, [Step(None, 0, 1)] * 2),
        *(Member("g", score, [Step(None, 0, 1)]) for score in (1.0, 0)),
    ]
    table = table_of(members).with_columns(ema_logprob=[-9.0, -0.2, -1.0, -0.05])
    settings = {**recipe.credit.settings, "std": "none"}
    return [round(value, 3) for value in run(str(recipe.credit.use), table, **settings).turn.tolist()]


def followed(recipe: Recipe) -> tuple[str, float]:
    """The policy that KL reads, and the share of the way to the policy that it goes in a step."""
    assert recipe.train is not None
    assert recipe.train.kl is not None
    own = recipe.train.model_copy(update={"warmup_steps": 0, "minibatch": 100})
    trainer = Trainer(llama(), own, reference=llama())
    name, to = "model.layers.0.mlp.up_proj.weight", recipe.train.kl.to
    first = trainer.model.get_parameter(name).detach().clone()
    trainer.update(make_rows(), 0)
    moved = trainer.model.get_parameter(name).detach() - first
    anchor = trainer.anchors[to].model.get_parameter(name).detach() - first
    return to, round(float(anchor.norm() / moved.norm()), 3)


def distilled(recipe: Recipe) -> list[float]:
    """The losses of two tokens without advantage, which lie 0.6 above the teacher, and 0.2 below."""
    return told(recipe, kl=True, logprob=[-1.0, -1.0], teacher_logprob=[-1.6, -0.8])


def scaled(recipe: Recipe) -> tuple[list[float], str]:
    """The losses of two tokens that are e^2 and e^0.1 as likely as when they were sampled, and how tokens are
    weighed."""
    assert recipe.train is not None
    found = told(recipe, logprob=[-1.0, -1.0], old_logprob=[-3.0, -1.1], advantage=[1.0, -1.0])
    return found, Objective.of(recipe.train, recipe.base).aggregation


def exits(recipe: Recipe) -> list[float]:
    """The rewards of an episode of three turns that is right, and of three exits after fewer: right, wrong, right."""
    parts = build(recipe)
    task, parent = Task.of("t", "2 + 2?", answer="4"), Parent(run="", episode="e0", turn=0)
    members = [
        msgspec.structs.replace(make_episode(task, *[turn()] * turns, answer=answer), id=f"e{k}", parent=origin)
        for k, (turns, answer, origin) in enumerate(
            [(3, "4", None), (1, "4", parent), (2, "5", parent), (3, "4", parent)]
        )
    ]

    async def scored() -> list[float]:
        alone = [(await parts.rewards.score(task, each)).onto(each) for each in members]
        return [each.total for each in await score_group(parts.rewards, alone)]

    return asyncio.run(scored())


def rewarded(recipe: Recipe, episodes: list[Episode]) -> list[float | None]:
    """What the recipe's rewards make of each episode."""
    parts = build(recipe)

    async def scored() -> list[float | None]:
        return [(await parts.rewards.score(each.task, each)).total for each in episodes]

    return asyncio.run(scored())


def agreeing(recipe: Recipe) -> list[float | None]:
    """The rewards of answers whose second is right, another one, and right after a wrong first one."""
    task = Task.of("t", "4 + 5? A 9 B 8 C 7", answer="A", options=[9, 8, 7])
    said = [("A", "A"), ("A", "B"), ("B", "A")]
    return rewarded(recipe, [make_episode(task, turn(), answer=a, info={"second": again}) for a, again in said])


def triggered(recipe: Recipe) -> list[Any]:
    """The rewards of a thought and of none where one is needed, of both where none is, and of no form; and the
    advantages of the three tokens of a reply with advantage 1."""
    replies = ["<think>5</think><answer>A</answer>", "<think></think><answer>A</answer>"]
    hard, easy = (Task.of("t", "?", answer="A", hard=hard) for hard in (True, False))
    played = [make_episode(task, turn(text=text), answer="A") for task in (hard, easy) for text in replies]
    rewards = rewarded(recipe, [*played, make_episode(easy, turn(text="A"), answer="A")])
    (one,) = [make_episode(easy, turn(), tokens=3)]
    credited = [CreditedEpisode(one, EpisodeCredit(episode_id="e", estimator="grpo", turn_advantages=[1.0]))]
    for part in build(recipe).make_curriculum():
        credited = part.refine(credited, None)
    return [[None if each is None else round(each, 2) for each in rewards], credited[0].credit.token_advantages]


def entropic(recipe: Recipe) -> list[list[float]]:
    """The losses of reinforcement learning, of an episode of two tokens and one of one; and those of the cold start,
    of tokens with the cross-entropies 1, 2.5, 1, 2, 3 and different entropies."""
    assert recipe.warm_start is not None
    first = told(
        recipe,
        logprob=[-1.0, -2.5, -2.5],
        advantage=[1.0, 1.0, -0.5],
        entropy=[0.1, 0.2, 0.3],
        episode=[0, 0, 1],
    )
    assert recipe.train is not None
    cold = recipe.model_copy(update={"train": recipe.train.model_copy(update={"loss": recipe.warm_start.loss})})
    logprob, entropy = [-1.0, -2.5, -1.0, -2.0, -3.0], [0.1, 0.5, 0.5, 0.5, 2.0]
    return [first, told(cold, logprob=logprob, advantage=[1.0] * 5, entropy=entropy)]


def preferred(recipe: Recipe) -> list[float]:
    """The loss of three replies: two tokens with -1 and -3, one with -1, one with -2; labels 2, 1 and 0. Without the
    first, that of a pair."""
    preference = recipe.stages[-1].preference
    assert preference is not None
    objective = Objective.alone(preference.loss)
    logprob, labels = [-1.0, -3.0, -1.0, -2.0], [2.0, 2.0, 1.0, 0.0]
    keep = slice(0 if preference.loss.use == "tpo" else 2, 4)
    columns = {name: torch.tensor(values[keep]) for name, values in (("logprob", logprob), ("reward", labels))}
    nothing = torch.zeros_like(columns["reward"])
    index = torch.tensor([0, 0, 1, 2][keep])
    index = index - index.min()
    batch = TokenBatch(
        old_logprob=nothing, behaviour_logprob=nothing, advantage=nothing, weight=nothing, ref_logprob=nothing,
        episode=index, turn=index, group=torch.zeros_like(index), **columns,
    )  # fmt: skip
    return [round(value, 3) for value in objective(batch)[0].tolist()]


def preferences(run: Run) -> list[dict[str, Any]]:
    """The lines of a stage of preferences."""
    return [line for line in run.reader.metrics() if line.get("split") == "preference"]


def separated(run: Run) -> None:
    """Asserts that the preferences had a gradient, and moved the policy."""
    lines = preferences(run)
    assert all(line["grad_norm"] > 0 for line in lines)
    assert lines[-1]["loss"] < lines[0]["loss"]


BABYAI = Path(__file__).parents[2] / "recipes" / "babyai"


def taught() -> tuple[str, ...]:
    """A teacher: the policy of `babyai-learn` after a longer warm start."""
    return (f"train.teacher={warm(str(BABYAI / 'learn.yaml'), (*WARMED, 'warm_start.steps=250'))}",)


LEARNT = (
    "tasks={source: ../babyai/task.py:missions, args: {level: GoToObj, n: 4096}}",
    "agent={use: recent_agent, replies: 0, opening: false, max_turns: 12}",
    "tools=[{game: {library: ../babyai/task.py:Grid, act: text, state: key, actions: [left, right, forward]}}]",
    "sampling.max_tokens=3", "train.lr=1.0e-3", "train.trainable=null",
)  # fmt: skip
"""Overrides of `babyai` for a policy of `babyai-learn`."""

SUMMED = ("warm_start.script=oracle", "warm_start.episodes=256", "warm_start.steps=400", *WARMED[3:])
"""Overrides: a warm start of `math-python-learn` after which some answers are right."""

GUESSED = ("warm_start.script=guesser", "warm_start.episodes=256", "warm_start.steps=200", *WARMED[3:])
"""Overrides: a warm start of `choices`, which is right more often than by chance."""

METHODS = [
    # psi is 0.3 and -0.1. Both episodes are on the right side by 0.4: log(1 + exp(-0.4)).
    Method("pacs", lambda run: above(run, 0.5), outcomes, [0.513, 0.513, 0.513]),
    # Half the group is right: -0.2 / 2 and -0.1 / 2; wrong: -log((1 - 0.905 / 2) / (1 - 1 / 2)) / 2.
    Method("nft", lambda run: steps(run, "loss"), outcomes, [-0.1, -0.05, -0.0455]),
    # 1 - 0.05 * (0.5 + 0.4)
    Method("kl-as-inference", lambda run: steps(run, "kl_ref"), posterior, 0.955),
    # Pairs: log(1 + exp(-h)), h = 2.5 * 0.1 * 0.5, 2.5 * 0.1 * 0.8 and 0.1 * 0.3: 0.633, 0.598, 0.678. An episode has
    # half of its pairs, times 3 tokens / 3 pairs.
    Method(
        "trpa", lambda run: [value for value in steps(run, "loss") if value > 0.5], levels, [0.6154, 0.6554, 0.6382]
    ),
    # 0.82 and 0.37, mean 0.59: only the first is consistent. Scores 1.5, 1 and 0, less their mean.
    Method(
        "grpo-care",
        lambda run: run.metric("consistent"),
        consistent,
        [0.667, 0.667, 0.167, -0.833],
        warmed=SUMMED,
    ),
    # 0.005 * 0.6^2 / 2 and 0.005 * 0.2^2 / 2.
    Method(
        "kdrl",
        lambda run: steps(run, "kl_ref"),
        distilled,
        [0.0009, 0.0001],
        sized=LEARNT,
        start=str(BABYAI / "learn.yaml"),
        given=taught,
    ),
    # The ratio e^2 is cut to 5: 5 * 1 * 1; e^0.1 is not: 1.1052 * -1 * 1. Each prompt has the same weight.
    Method("scale-rl", lambda run: [line for line in run.metric("staleness")], scaled, ([5.0, -1.1052], "group_mean")),
    # The exit after one turn is the first that is right, the one after three the second, the whole episode the third.
    Method(
        "s-grpo",
        lambda run: [episode.components["decayed"] for episode in run.played],
        exits,
        [0.25, 1.0, 0.0, 0.5],
        sized=("train.group_size=1", "train.groups=8"),
        warmed=SUMMED,
    ),
    # Right twice, right once, wrong.
    Method(
        "acre",
        lambda run: [episode.components["consistent"] for episode in run.played],
        agreeing,
        [1.0, 0.5, 0.0],
        warmed=GUESSED,
    ),
    # Right is 1, and each fault costs 0.3: none for a thought on the hard one; for none there; for one on the easy one.
    Method(
        "adacot",
        lambda run: [[episode.components[name] for name in ("miss", "over")] for episode in run.played],
        triggered,
        [[1.0, 0.7, 0.7, 1.0, 0.7], [0.0, 1.0, 1.0]],
        warmed=GUESSED,
    ),
    # Weights of the bonus: 5 (10 * 0.68, cut), 3.208 (10 * 0.32) and 5 (10 * 1, cut). The one token in five with the
    # largest -l - entropy is the second, with five times its cross-entropy.
    Method(
        "light-if",
        lambda run: steps(run, "loss"),
        entropic,
        [[-1.5, -1.6416, -1.0], [0.0, 12.5, 0.0, 0.0, 0.0]],
        sized=("warm_start.episodes=128", "warm_start.steps=150"),
        warmed=None,
    ),
    # -log sigmoid(0.2 * 1) + 2, the mean of the first reply's cross-entropy.
    Method(
        "tpo",
        lambda run: [line["loss"] for line in preferences(run)],
        preferred,
        [2.598] * 4,
        warmed=None,
        learns=separated,
    ),
    Method("t1", lambda run: steps(run, "kl_ref"), followed, ("ema_reference", 0.01)),
]
