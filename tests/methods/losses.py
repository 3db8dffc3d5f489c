"""Methods that train on another loss, or compare the policy with another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from agentrl.config.recipe import Recipe
from agentrl.rollouts.builder import build
from agentrl.training.batch.kl_reward import with_kl_reward
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.objective import Objective
from agentrl.training.trainer import Trainer
from agentrl.types.episode import Episode, Node, Turn
from agentrl.types.sample import untrained_samples
from agentrl.types.task import Task
from tests.estimators.tables import Member, Step, run, table_of
from tests.methods.proofs import Method, Run
from tests.training.make import llama, make_rows


def steps(run: Run, name: str) -> list[float]:
    """A metric of the updates."""
    return [round(line[name], 6) for line in run.reader.metrics() if line.get("split") == "train" and name in line]


def told(recipe: Recipe, **columns: list[Any]) -> list[float]:
    """The loss of tokens that are written by hand, without KL. Each token is an episode, unless `episode` is given."""
    n = len(columns["logprob"])
    given = {"old_logprob": columns["logprob"], "advantage": [0.0] * n, "reward": [0.0] * n, **columns}
    indices = {"episode": list(range(n)), "group": [0] * n}
    flat = {name: torch.tensor(given.pop(name, own)) for name, own in indices.items()}
    floats = {name: torch.tensor(values, dtype=torch.float32) for name, values in given.items()}
    batch = TokenBatch(
        behaviour_logprob=floats["old_logprob"], weight=torch.full((n,), 1 / n), turn=flat["episode"], **floats, **flat
    )
    assert recipe.train is not None
    objective = Objective.of(recipe.train.model_copy(update={"kl": None}), recipe.base)
    return [round(value, 3) for value in objective(batch)[0].tolist()]


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


METHODS = [
    # psi is 0.3 and -0.1. Both episodes are on the right side by 0.4: log(1 + exp(-0.4)).
    Method("pacs", lambda run: [value for value in steps(run, "loss") if value > 0.5], outcomes, [0.513, 0.513, 0.513]),
    # Half the group is right: -0.2 / 2 and -0.1 / 2; wrong: -log((1 - 0.905 / 2) / (1 - 1 / 2)) / 2.
    Method("nft", lambda run: steps(run, "loss"), outcomes, [-0.1, -0.05, -0.045]),
    # 1 - 0.05 * (0.5 + 0.4)
    Method("kl-as-inference", lambda run: steps(run, "kl_ref"), posterior, 0.955),
    # Pairs: log(1 + exp(-h)), h = 2.5 * 0.1 * 0.5, 2.5 * 0.1 * 0.8 and 0.1 * 0.3: 0.633, 0.598, 0.678. An episode has
    # half of its pairs, times 3 tokens / 3 pairs.
    Method("trpa", lambda run: [value for value in steps(run, "loss") if value > 0.5], levels, [0.615, 0.655, 0.638]),
    # 0.82 and 0.37, mean 0.59: only the first is consistent. Scores 1.5, 1 and 0, less their mean.
    Method("grpo-care", lambda run: run.metric("consistent"), consistent, [0.667, 0.667, 0.167, -0.833]),
    Method("t1", lambda run: steps(run, "kl_ref"), followed, ("ema_reference", 0.01)),
]
