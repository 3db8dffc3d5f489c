"""CPU time of BLEU of a batch of sentences: `python -m benchmarks.bleu [--sizes 32 256 2048] [--words 100]`.

CPU seconds of this process, the median of some repetitions, of `bleu_of_texts` and of a loop over the sentences that
counts n-grams. Both begin with texts and give the same numbers. The last line is JSON.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from numpy.typing import NDArray

from agentrl.rewards.functions.batch_bleu import bleu_of_texts
from agentrl.rewards.functions.translation import bleu
from agentrl.types.episode import Episode
from agentrl.types.task import Task
from benchmarks.credit import cpu_ms
from benchmarks.harness import Benchmark, Report, Row

VOCABULARY = 512


class Batch(Row):
    """CPU milliseconds of a batch.

    Attributes:
        loop: of the function for one sentence, sentence by sentence.
    """

    sentences: int
    words: int
    batch: float
    loop: float


BENCHMARK = Benchmark(
    __file__,
    __doc__,
    rows=Batch,
    kind="measure",
    beside="a loop over the sentences",
    smoke={"sizes": [8], "words": 10, "repeat": 1},
)


def main() -> int:
    parser = BENCHMARK.parser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 256, 2048], help="sentences of a batch")
    parser.add_argument("--words", type=int, default=100, help="words of a sentence")
    parser.add_argument("--repeat", type=int, default=5)
    return BENCHMARK.run(parser, measure)


def measure(options: argparse.Namespace, report: Report) -> None:
    report.plan(len(options.sizes))
    for size in options.sizes:
        random = np.random.default_rng(size)
        right = random.integers(0, VOCABULARY, (size, options.words))
        said = np.where(random.random(right.shape) < 0.2, random.integers(0, VOCABULARY, right.shape), right)
        texts, references = _texts(said), [[text] for text in _texts(right)]
        pairs = [_pair(text, *own) for text, own in zip(texts, references, strict=True)]
        np.testing.assert_allclose(bleu_of_texts(texts, references), [bleu(*pair) for pair in pairs])
        batch = cpu_ms(lambda own=(texts, references): bleu_of_texts(*own), options.repeat)  # type: ignore[misc]
        loop = cpu_ms(lambda pairs=pairs: [bleu(*pair) for pair in pairs], options.repeat)  # type: ignore[misc]
        report.row(Batch(sentences=size, words=options.words, batch=round(batch, 3), loop=round(loop, 3)))
        report.ratio(f"CPU ms, {size} sentences of {options.words} words", ("batch", batch), ("loop", loop))
        report.done(f"{size} sentences")


def _texts(words: NDArray[np.int64]) -> list[str]:
    return [" ".join(map(str, row)) for row in words.tolist()]


def _pair(said: str, right: str) -> tuple[Task, Episode]:
    """A task whose answer is the reference, and an episode with the candidate."""
    task = Task.of("t", "?", answer=right)
    return task, Episode(id="e", group_id="g", task=task, status="done", answer=said)


if __name__ == "__main__":
    sys.exit(main())
