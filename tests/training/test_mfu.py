"""`benchmarks.mfu` on a tiny model: the operations that it divides by are those that torch counts."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from agentrl.training.model.packing import pack
from agentrl.training.model.policy import Policy
from benchmarks import mfu
from benchmarks.packing import episodes
from benchmarks.random_models import SIZES, random_model


def test_operations_are_those_that_torch_counts():
    model = random_model("tiny", torch.float32, "cpu")
    rows = episodes(2, 3, 40, 10, 10, SIZES["tiny"]["vocab_size"])
    packs = pack(rows, 10_000)
    with FlopCounterMode(display=False) as counter:
        mfu.by_tree(Policy(model), packs, rows)
    counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    products = sum(flops for name, flops in counted.items() if "attention" not in name)
    # All but attention: its kernels compute what the mask hides, too, and the scores again for the gradient.
    width = 12 * model.config.num_hidden_layers * model.config.hidden_size
    pairs = sum(depth + 1 for packed in packs for depth in packed.positions.tolist())
    # Biases and norms are weights, and no products.
    assert abs((mfu.operations(model, packs) - width * pairs) / products - 1) < 0.01


def test_both_layouts_are_measured():
    model = random_model("tiny", torch.float32, "cpu")
    rows = episodes(2, 3, 40, 10, 10, SIZES["tiny"]["vocab_size"])
    tree, padded = mfu.measure(model, rows, 300, 1, 1.0, "float32")
    assert tree["forwarded"] < padded["forwarded"]
    assert tree["mfu"] > 0
    assert padded["mfu"] > 0
