"""Expected figures of `make gpu` on an H100 (SXM, 80 GB), which are derived, and those measured on an H200.

`python -m scripts.gpu.expected` prints the table of docs/results/gpu.md, which explains them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.gpu.estimate import weights

BANDWIDTH, PEAK = 3.35e12, 989e12
"""Bytes and dense bfloat16 operations a second, by the data sheet."""

ATTAINED = (0.75, 0.97), (0.6, 0.87)
"""Shares of both that a plain copy and a large product attain."""

MEASURED = Path(__file__).parents[2] / "docs/results/gpu-h200.json"

LAUNCH_US = 4.0, 9.0
"""Microseconds for an operation that Python launches, nothing else being slower."""

AROUND = 1.0, 3.0
"""Times as long with what Python does around an operation of a model: views, modules, arguments."""

OPERATIONS = {"0.5b": 499, "1.5b": 561}
"""Of a decode step. The phase `decode` counts them."""

SIZES = {
    "0.5b": (896, 4864, 24, 14, 2), "1.5b": (1536, 8960, 28, 12, 2),
}  # fmt: skip
"""Hidden size, size in the MLP, layers, heads, heads of keys (as in benchmarks/random_models.py)."""

VOCABULARY = 151936
PREDICTED = 0.46
"""Share of a tree's tokens that are sampled, in the phase `mfu`."""

SHARED = 0.28, 0.38
"""Unique tokens of a tree by the padded tokens of its rows, there."""

BATCHES = 1, 8, 32, 64, 256
CONTEXT, STEPS = 1024, 96

Range = tuple[float, float]


class Shape:
    """A model of SIZES as `weights` reads it."""

    model_type, tie_word_embeddings, head_dim, vocab_size = "qwen2", True, None, VOCABULARY

    def __init__(self, size: str) -> None:
        (self.hidden_size, self.intermediate_size, self.num_hidden_layers,
         self.num_attention_heads, self.num_key_value_heads) = SIZES[size]  # fmt: skip


def step_ms(size: str, rows: int) -> Range:
    """Milliseconds of a decode step: what must be read takes so long at least, and so does launching all operations."""
    shape = Shape(size)
    head = shape.hidden_size // shape.num_attention_heads
    token = 2 * 2 * shape.num_hidden_layers * shape.num_key_value_heads * head  # bytes of its keys and values
    read = 2 * weights(shape) + rows * token * (CONTEXT + STEPS / 2)
    shortest, longest = (1e3 * read / BANDWIDTH / share for share in reversed(ATTAINED[0]))
    low, high = (OPERATIONS[size] * us * around / 1e3 for us, around in zip(LAUNCH_US, AROUND, strict=True))
    return max(shortest, low), longest + high  # at worst the one is not hidden behind the other


def mfu(size: str) -> Range:
    """MFU of trees: products at the share of the peak that they attain, and all other operations, which are as fast as
    memory is. By token and layer the latter move about 630 bytes for each hidden element and 30 for each element of the
    MLP: norms, casts, rotary embedding and residual sums, forward once and backward twice."""
    shape = Shape(size)
    head = VOCABULARY * shape.hidden_size
    work = 6 * (weights(shape) - head) + 6 * head * PREDICTED
    moved = shape.num_hidden_layers * (630 * shape.hidden_size + 30 * shape.intermediate_size)
    slow, fast = (
        work / (PEAK * product) + moved * part / (BANDWIDTH * copied)
        for product, copied, part in zip(ATTAINED[1], ATTAINED[0], (1.3, 0.7), strict=True)
    )
    return work / PEAK / slow, work / PEAK / fast


def _ranges() -> Iterator[tuple[str, str, Range]]:
    yield "doctor", "bf16 product TFLOP/s", (PEAK / 1e12 * ATTAINED[1][0], PEAK / 1e12 * ATTAINED[1][1])
    yield "doctor", "copy GB/s", (BANDWIDTH / 1e9 * ATTAINED[0][0], BANDWIDTH / 1e9 * ATTAINED[0][1])
    yield "doctor", "operation us", (2.0, LAUNCH_US[1])
    for figure in ("failed", "skipped"):
        yield "tests", figure, (0, 0)
    for layout in ("tree", "rows"):
        yield "exactness", f"float32, {layout}, largest gap", (0, 1e-3)
        yield "exactness", f"bfloat16, {layout}, mean gap", (0.002, 0.07)
    for size in SIZES:
        for rows in BATCHES:
            ms = step_ms(size, rows)
            yield "decode", f"{size}, {rows} rows, ms/step", ms
            yield "decode", f"{size}, {rows} rows, tokens/s", (1e3 * rows / ms[1], 1e3 * rows / ms[0])
    for size in SIZES:
        low, high = mfu(size)
        yield "mfu", f"{size}, tree, MFU", (low, high)
        yield "mfu", f"{size}, padded, MFU", (low * SHARED[0], high * SHARED[1])
    yield "trl", "times as fast as TRL", (1.5, 6)
    yield "quickstart", "solved after", (0.5, 1)
    for case in ("0.5b", "1.5b", "1.5b, activation checkpointing"):
        yield "memory", f"{case}, of the estimate", (0.8, 1.25)
    yield "profile", "update, share of the time that the device works", (0.8, 1)
    yield "profile", "8 decode steps of 64 rows, share of the time that the device works", (0.05, 0.6)


EXPECTED: dict[tuple[str, str], Range] = {(phase, figure): found for phase, figure, found in _ranges()}
"""By phase and figure: from, to."""


def compared(phase: str, figure: str, value: Any) -> str:
    """Returns the expected range of a figure, with a mark if the figure lies outside."""
    if (phase, figure) not in EXPECTED:
        return ""
    low, high = EXPECTED[phase, figure]
    fits = isinstance(value, int | float) and low <= value <= high
    return f"expected {rounded(low, high)}{'' if fits else '  <-- look at docs/results/gpu.md'}"


def rounded(low: float, high: float) -> str:
    """A range for people."""
    return f"{_short(low)} to {_short(high)}" if low != high else _short(low)


def _short(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.10g}"


def table() -> str:
    """Rows of a Markdown table: phase, figure, what is expected on an H100, what was measured on an H200."""
    phases = json.loads(MEASURED.read_text())["phases"]
    return "\n".join(
        f"| {phase} | {figure} | {rounded(*found)} | {_measured(phases[phase]['figures'].get(figure))} |"
        for (phase, figure), found in EXPECTED.items()
    )


def _measured(value: float | None) -> str:
    return "not measured" if value is None else f"{float(f'{value:.3g}'):,.10g}"


if __name__ == "__main__":
    print(table())
