"""BLEU of each sentence of a batch of token ids, in array operations: no loop over sentences or n-grams."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from agentrl.rewards.declare import reward
from agentrl.rewards.functions.answers.comparers import said
from agentrl.rewards.functions.translation import words_of
from agentrl.rewards.functions.verifiers import gold
from agentrl.types.episode import Episode
from agentrl.types.task import Task

Ids = NDArray[np.int64]


@reward(source="TensorBLEU, arXiv:2510.05485: BLEU of each sentence of a batch of token ids", bounds=(0, 1))
def group_bleu(task: Task, group: list[Episode], *, key: str = "answer", order: int = 4) -> list[float | None]:
    """BLEU of each member, as `bleu` gives it, for the whole group in one pass over arrays.

    Args:
        key: the field of `task.data` with the reference translation, or a list of them.
    """
    answers = [said(episode) or "" for episode in group]
    return list(bleu_of_texts(answers, [gold(task, key)] * len(group), order).tolist())


def bleu_of_texts(texts: Sequence[str], references: Sequence[Sequence[str]], order: int = 4) -> NDArray[np.float64]:
    """BLEU of each text against its own references, [n]. The ids are those of the words of the batch."""
    ids: dict[str, int] = {}

    def ids_of(text: str) -> list[int]:
        return [ids.setdefault(word, len(ids)) for word in words_of(text)]

    return bleu_of_ids([ids_of(text) for text in texts], [[ids_of(each) for each in own] for own in references], order)


def bleu_of_ids(
    candidates: Sequence[Sequence[int]], references: Sequence[Sequence[Sequence[int]]], order: int = 4
) -> NDArray[np.float64]:
    """BLEU of each candidate against its own references, [n], as `bleu` of translations defines it.

    The n-grams of the batch get compact numbers: that of an n-gram stands for the pair of the number of its first n - 1
    tokens and its last token (`np.unique`). Counts are those of equal (sentence, n-gram).

    Args:
        candidates: token ids of n sentences.
        references: for each of them, the token ids of its references, at least one.
        order: the longest n-grams.
    """
    sentences = [*candidates, *chain(*references)]
    lengths = np.array([len(each) for each in sentences], np.int64)
    owner = np.repeat(np.arange(len(candidates)), [len(each) for each in references])
    total = lengths[: len(candidates)]
    flat = np.fromiter(chain(*sentences), np.int64, lengths.sum())
    tokens = _numbered(flat)
    sentence = np.repeat(np.arange(len(sentences)), lengths)
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(flat))  # tokens from here to the end of the sentence
    grams, starts = tokens, np.arange(len(flat))
    logs, zeros = np.zeros(len(candidates)), np.zeros(len(candidates))
    silent = total == 0
    for n in range(1, order + 1):
        if n > 1:
            fits = left[starts] >= n
            starts = starts[fits]
            grams = _numbered(grams[fits] * (len(flat) + 1) + tokens[starts + n - 1])
        own = np.maximum(total - n + 1, 0)
        shared = _shared(sentence[starts], grams, owner, len(candidates))
        counts = own > 0
        silent |= (n == 1) & (shared == 0)
        zeros += counts & (shared == 0)
        smoothed = np.where(shared > 0, shared / np.maximum(own, 1), 0.5**zeros / np.maximum(own, 1))
        logs += np.where(counts, np.log(smoothed), 0.0)
    brevity = np.minimum(0.0, 1 - _closest(total, lengths[len(candidates) :], owner) / np.maximum(total, 1))
    return np.where(silent, 0.0, np.exp(brevity + logs / np.clip(total, 1, order)))


def _numbered(values: Ids) -> Ids:
    """The values, as numbers from 0 on: equal ones have the same number."""
    return np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _shared(sentence: Ids, grams: Ids, owner: Ids, n: int) -> Ids:
    """Clipped counts: of each candidate's n-grams, at most as many as one of its references has.

    Args:
        sentence, grams: the sentence and the number of each n-gram; candidates are sentences 0 to n - 1.
        owner: the candidate of each reference.
    """
    width = int(grams.max(initial=-1)) + 1
    keys, counts = np.unique(sentence * width + grams, return_counts=True)
    mine = keys < n * width
    of, gram = np.divmod(keys[~mine], max(width, 1))
    pairs = owner[of - n] * width + gram
    by = np.lexsort((counts[~mine], pairs))  # of equal pairs the largest count is last
    pairs, most = pairs[by], counts[~mine][by]
    last = np.append(pairs[1:] != pairs[:-1], True)[: len(pairs)]
    pairs, most = pairs[last], most[last]
    at = np.searchsorted(pairs, keys[mine])
    found = np.append(pairs, -1)[at] == keys[mine]
    clipped = np.where(found, np.minimum(np.append(most, 0)[at], counts[mine]), 0)
    return np.bincount(keys[mine] // max(width, 1), weights=clipped, minlength=n).astype(np.int64)


def _closest(total: Ids, lengths: Ids, owner: Ids) -> Ids:
    """The length of the reference of each candidate that is closest to its own; of two as close the shorter one."""
    by = np.lexsort((lengths, np.abs(lengths - total[owner]), owner))
    first = np.searchsorted(owner[by], np.arange(len(total)))
    return lengths[by][first]
