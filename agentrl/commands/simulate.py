"""`agentrl simulate`: predictions as a table."""

from __future__ import annotations

import dataclasses

from rich.console import Console
from rich.table import Table

from agentrl.simulate.simulator import Prediction

SHOWN = {
    "gpus": "GPUs",
    "episodes_per_s": "episodes/s",
    "tokens_per_s": "tokens/s",
    "iteration_s": "iteration s",
    "trainer_busy": "trainer busy",
    "engines_busy": "engines busy",
    "batch": "batch",
    "workers_busy": "workers busy",
    "driver_busy": "driver busy",
    "in_flight": "in flight",
    "staleness": "staleness",
}


def print_predictions(predictions: list[Prediction]) -> None:
    """Prints a table, one line per prediction; with several, the throughput per GPU relative to the first line."""
    table = Table(*SHOWN.values(), *(["a GPU's"] if len(predictions) > 1 else []), box=None, header_style="bold")
    base = predictions[0].episodes_per_s / max(predictions[0].gpus, 1)
    for each in predictions:
        values = dataclasses.asdict(each)
        cells = [f"{values[name]:.0%}" if name.endswith("_busy") else f"{values[name]:,.4g}" for name in SHOWN]
        share = each.episodes_per_s / max(each.gpus, 1) / base
        table.add_row(*cells, *([f"{share:.0%}"] if len(predictions) > 1 else []))
    Console(width=140).print(table)
