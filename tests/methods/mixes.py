"""Mixes: recipes that put several methods together. Each part acts in the run, and bites by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agentrl.config.recipe import Recipe
from agentrl.rewards.score import Live
from agentrl.types.task import Task
from tests.methods.curricula import horizons, longest
from tests.methods.played import curriculum, drawn, episode, group, rewards_of, scored, tasks
from tests.methods.proofs import Method, Run
from tests.methods.written import credited
from tests.rewards.make import make_episode, turn

HOUSE = (
    "curriculum=[{scaling_inter: {max_turns: [4, 8, 10], every: 1}}, {dart_rollouts: {easy: 0.6, least: 2, slack: 2}}]",
    "credit={gigpo: {gamma: 0.95, std: none}}",
)


SHORT = "agent.system=Solve."


def together(*parts: Sequence[Any]) -> list[Any]:
    """What the parts of a mix wrote, one after the other; nothing if one of them wrote the same everywhere."""
    varied = all(len({str(value) for value in part}) > 1 for part in parts)
    return [value for part in parts for value in part] if varied else []


def sizes(run: Run) -> list[int]:
    """The number of episodes of each group."""
    found: dict[str, int] = {}
    for each in run.played:
        found[each.group_id] = found.get(each.group_id, 0) + 1
    return list(found.values())


def steps(run: Run) -> list[float]:
    """The credit of each turn against the turns at the same state, as only GiGPO gives."""
    credits = [run.reader.credit(each.id) for each in run.played]
    return [value for found in credits if found is not None for value in found.parts.get("step", [])]


def gated(recipe: Recipe) -> list[float]:
    """Outcome and rewards of turns of a success and a failure of two turns that could be read."""
    found = []
    for reward in (1.0, 0.0):
        each = scored(recipe, episode("e", reward, turns=2), success=reward, turn_format=[1.0, 1.0])
        found += [each.reward or 0.0, sum(said.reward or 0.0 for said in each.turns)]
    return found


def fewer(recipe: Recipe) -> int:
    """The second plan of a task that four of five episodes solved, of eight episodes."""
    found, source = curriculum(recipe), tasks("t")
    drawn(found, source, 1)
    found.observe([group("t", 1, 1, 1, 1, 0)], 0)
    return found.draw(source, 1, 8, 12, 1)[0].size


def house(recipe: Recipe) -> dict[str, Any]:
    """What each of the four methods makes of it."""
    return {
        "horizon": horizons(recipe),
        "gate": gated(recipe),
        "state": credited(recipe),
        "rollouts": fewer(recipe),
    }


def tried(recipe: Recipe) -> dict[str, Any]:
    """The rewards of turns that answer 1, 1 and 2, where 2 is right; and credit by the state."""
    task = Task.of("t", "How much?", answer="2")
    played = make_episode(task, *[turn(text=f"<answer>{said}</answer>") for said in (1, 1, 2)], answer="2")
    found = asyncio.run(rewards_of(recipe).score(task, played, live=Live(info={"score": 1.0}))).onto(played)
    return {"feedback": [round(each.reward or 0.0, 3) for each in found.turns], "state": credited(recipe)}


METHODS = [
    Method(
        "mix-textworld-express",
        lambda run: together(
            longest(run), [gate.open for each in run.played for gate in each.gates], steps(run), sizes(run)
        ),
        house,
        {
            "horizon": [4, 8, 10],
            # 1 and twice 0.05; a failure keeps nothing.
            "gate": [1.0, 0.1, 0.0, 0.0],
            # 2/3 or -1/3, and by state: half of 0.95 more or less at a, half of 1 at b; c is of one episode.
            "state": [1.142, 1.167, -0.808, -0.833, -0.333],
            # (1 - 4/5) / (1 - 0.6) = 1/2.
            "rollouts": 4,
        },
        small=HOUSE,
        # Some group is easy in the first iteration, whose episodes end at the horizon, and one is longer in the second:
        # with each of four seeds, and with any timing.
        sized=("tasks.args.n=4", "agent.max_turns=10", "train.groups=8", "engine.batch_invariant=true"),
    ),
    Method(
        "mix-puzzles",
        lambda run: together([len(each.turns) for each in run.played], steps(run)),
        tried,
        {
            # 0.5^2 for the third answer, less 0.5 * (1 - 2/3).
            "feedback": [0.0, 0.0, 0.083],
            "state": [1.142, 1.167, -0.808, -0.833, -0.333],
        },
        small=("credit={gigpo: {gamma: 0.95, std: none}}",),
        sized=("tasks.args.kinds=[count_bits]", "sampling.max_tokens=24", "train.trainable=null", SHORT),
        warmed=(
            "model={scratch: {hidden: 32, layers: 2, heads: 2, vocab_size: 400, max_context: 768}, device: cpu}",
            "warm_start={script: oracle, episodes: 64, steps: 150, lr: 3.0e-3}", SHORT, "tasks.args.kinds=[count_bits]",
            "train.trainable=null", "train.kl={coef: 0.01, estimator: k2}", "train.iterations=1", "train.groups=1",
            "train.group_size=2", "train.minibatch=2",
            "sampling.max_tokens=24", "eval=null",
        ),
    ),
]  # fmt: skip

WITHOUT = {
    "mix-textworld-express": {
        "horizon": ["curriculum=[{use: dart_rollouts}]", "agent.max_turns=12"],
        "gate": ["gate=[]"],
        "state": ["credit=grpo"],
        "rollouts": ["curriculum=[{scaling_inter: {max_turns: [4, 8, 10], every: 1}}]"],
    },
    "mix-puzzles": {"feedback": ["rewards.unary_feedback=null", "rewards.score.weight=1"], "state": ["credit=grpo"]},
}
"""Overrides that take one part out of a mix."""
