"""Methods of conversations: with a list at their end, or imagined."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import torch
from safetensors.numpy import load_file

from agentrl.chat.formats.registry import parser_named
from agentrl.chat.renderer import Renderer
from agentrl.chat.tokenizer import ByteTokenizer
from agentrl.config.recipe import Recipe
from agentrl.estimators.table import CreditTable
from agentrl.rollouts.builder import build
from agentrl.rollouts.conversation.policies import SELF
from agentrl.store.run_dir import RunDir
from agentrl.training.losses.batch import TokenBatch
from agentrl.training.losses.objective import Objective
from agentrl.training.stages.data import examples_of, stored_for
from agentrl.training.stages.stage import stages_of
from tests.methods.programs import played
from tests.methods.proofs import Method, Run

# --- Rank-GRPO --------------------------------------------------------------------------------------------------------

FILMS = {"instruction": "I liked bal. Now a calm one?", "liked": "bal", "wanted": ["ban", "bar"]}


def units(run: Run) -> Sequence[Any]:
    """By list: how many different advantages its tokens have."""
    return [len(set(turn.advantage)) for record in run.reader.tokens() for turn in record.turns]


def ranked(recipe: Recipe) -> list[Any]:
    """By list of a group of three: what its lines earn, and the credit of its tokens, equal neighbours once."""
    said = ("ban\nban\nbar\n", "bal\nbar", "kan\nkan\nban\nbar")
    lists = [msgspec.structs.replace(played(recipe, each, task=FILMS), id=each) for each in said]
    table = CreditTable.from_episodes(lists)
    credit = build(recipe).credit(table)
    token = credit.turn[table.token_turn] if credit.token is None else credit.token
    by_list = [token[start:end].round(3).tolist() for start, end in pairwise(table.token_offsets)]
    earned = [[round(span.value, 3) for span in each.turns[0].spans] for each in lists]
    return [earned, [[value for value, _ in groupby(of)] for of in by_list]]


# --- imagined dialogues -----------------------------------------------------------------------------------------------

HILLS = {"instruction": "A trip?", "place": "hills", "mood": "wild", "human": "self"}
RENDERER = Renderer(ByteTokenizer(), parser_named("hermes", []), [])


def imagined(run: Run) -> Sequence[Any]:
    """By imagined dialogue: what the policy said as the person, where it does not train."""
    return [[turn.text for turn in each.turns if each.policy_of(turn) == SELF] for each in run.played]


def weighed(recipe: Recipe) -> list[list[float]]:
    """By dialogue of two with one person: the weights of the agent's utterances in the stage after them."""
    asks = {"main": ["sea, hills or city?", "calm or wild?", "Try climb."], "human": ["hills", "wild"]}
    (stage,) = (each for each in stages_of(recipe) if each.name == "weigh")
    with TemporaryDirectory() as folder, RunDir.create(Path(folder) / "run", {"recipe": {}}) as run:
        for k, said in enumerate((asks, {"main": ["Try dance."]})):
            run.add(msgspec.structs.replace(played(recipe, said, task=HILLS), id=f"imagine/train/g#{k}", split="train"))
        with stored_for(stage, run) as stored:
            examples = examples_of(stage, RENDERER.parser, stored, [])
    samples = [sample for each in examples for sample in each.samples(RENDERER, 1024)]
    loss = Objective.alone(stage.settings.loss)
    return [[_weight(loss, float(each.advantage[start])) for _, start, _ in each.turn_spans] for each in samples]


def _weight(loss: Objective, advantage: float) -> float:
    """The weight that a loss gives to a token of this advantage."""
    one, zero, index = torch.ones(1), torch.zeros(1), torch.zeros(1, dtype=torch.int64)
    batch = TokenBatch(-one, -one, -one, torch.tensor([advantage]), zero, one, index, index, index)
    return round(loss(batch)[0].item(), 3)


def weighed_anew(run: Run) -> None:
    """Asserts that imagining left the policy as it was, and that the stage after it had a gradient and changed it."""
    begun, _, imagined, last = sorted(run.path.glob("checkpoints/0[12]-*"))
    before, same, after = (load_file(each / "model.safetensors") for each in (begun, imagined, last))
    assert [each.name for each in (begun, imagined)] == ["01-imagine-000000", "01-imagine-000002"]
    assert all((before[name] == same[name]).all() for name in before)
    assert any((before[name] != after[name]).any() for name in before)
    assert all(line["grad_norm"] > 0 for line in run.reader.metrics() if line.get("stage") == "weigh")


METHODS: Sequence[Method] = [
    # DCG of a hit: 1, 1 / log2(3), 1/2. The first ranks' returns are 1.5, .631 and .5: mean .877, deviation .5435. The
    # second ones' are .5, .631 and .5, the third ones' .5, 0 (there is none) and .5. A fourth line, and the end of a
    # list, get nothing. A film that was named before, or that the person has seen, is no hit.
    Method(
        "rank-grpo",
        units,
        ranked,
        [
            [[1.0, 0.0, 0.5], [0.0, 0.631], [0.0, 0.0, 0.5, 0.0]],
            [[1.146, -0.577, 0.577, 0.0], [-0.453, 1.153, 0.0], [-0.693, -0.577, 0.577, 0.0]],
        ],
        sized=("warm_start.steps=150", "warm_start.episodes=512", "train.record_tokens=4"),
        warmed=None,
    ),
    # With 0.9 a turn, the utterances of the good dialogue return .81, .9 and 1, those of the other 0. A dialogue counts
    # once: the mean is .9033 / 2. Weights: exp of .3583, .4483, .5483 and -.4517, over .25. The person's are left out.
    Method(
        "imagined-dialogues",
        imagined,
        weighed,
        [[4.193, 6.009, 8.965], [0.164]],
        sized=("stages.0.sft.steps=150", "stages.0.sft.episodes=256", "train.groups=8", "train.keep.last=9"),
        warmed=None,
        learns=weighed_anew,
    ),
]
