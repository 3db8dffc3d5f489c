"""BLEU of a batch: the numbers of the function for one sentence, and those computed by hand."""

from __future__ import annotations

import math
import random

import pytest

from agentrl.rewards.functions.batch_bleu import bleu_of_ids, group_bleu
from agentrl.rewards.functions.translation import bleu
from agentrl.types.task import Task
from tests.rewards.make import make_episode

CAT = [1, 2, 3, 4, 1, 5]  # the cat is on the mat
HAND = [
    (CAT, [CAT], 1.0),
    # 5/6, 3/5, 1/4, and none of three quadruples: 1/(2 x 3).
    ([1, 2, 9, 4, 1, 5], [CAT], (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25),
    # Clipped: the has two of seven; pairs none: 1/(2 x 6), triples 1/(4 x 5), quadruples 1/(8 x 4).
    ([1] * 7, [CAT], (2 / 7 / 12 / 20 / 32) ** 0.25),
    # All three orders are right, and the fourth does not exist; three words for six: e^(1 - 2).
    ([1, 2, 3], [CAT], math.exp(-1)),
    ([7, 8], [CAT], 0.0),
    ([], [CAT], 0.0),
    # Of two references: 1 and 2 of the first, 3 of the second; no pair but (1, 2); the closest is three long.
    ([1, 2, 3], [[1, 2, 8, 8, 8], [3, 8, 9]], (3 / 3 * 1 / 2 * 1 / 2) ** (1 / 3)),
    # Once in each reference is once: 1/2, and 1/(2 x 1).
    ([6, 6], [[6, 7], [8, 6]], (1 / 2 * 1 / 2) ** 0.5),
]  # fmt: skip


def test_bleu_of_a_batch_on_numbers_computed_by_hand() -> None:
    candidates, references, expected = zip(*HAND, strict=True)
    assert bleu_of_ids(candidates, references).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("candidate", "references", "expected"), HAND)
def test_a_sentence_does_not_depend_on_its_batch(
    candidate: list[int], references: list[list[int]], expected: float
) -> None:
    assert bleu_of_ids([candidate], [references]).tolist() == pytest.approx([expected])


def test_an_empty_batch() -> None:
    assert bleu_of_ids([], []).tolist() == []


@pytest.mark.parametrize("order", [1, 2, 4, 6])
def test_it_is_what_the_loop_over_sentences_gives(order: int) -> None:
    rng = random.Random(order)
    drawn = [[[rng.randint(0, 4) for _ in range(rng.randint(0, 9))] for _ in range(4)] for _ in range(200)]
    batch = bleu_of_ids([own for own, *_ in drawn], [[[3], *others] for _, *others in drawn], order)
    for (own, *others), found in zip(drawn, batch, strict=True):
        references = [" ".join(map(str, each)) for each in ([3], *others)]
        task = Task.of("t", "?", answer=references)
        alone = bleu(task, make_episode(task, answer=" ".join(map(str, own))), order=order)
        assert found == pytest.approx(alone, abs=1e-12)


def test_the_reward_of_a_group_is_the_bleu_of_each_member() -> None:
    task = Task.of("t", "?", answer=["zwei rote Boote", "zwei Boote, rot"])
    said = ["zwei rote Boote", "zwei Boote", "Zwei rote, Boote", None, ""]
    group = [make_episode(task, answer=answer) for answer in said]
    assert group_bleu(task, group) == pytest.approx([bleu(task, each) for each in group])
