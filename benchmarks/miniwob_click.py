"""A policy from scratch learns a click family of MiniWoB++ by text: `python -m benchmarks.miniwob_click [--seeds 3]`.

Trains recipes/miniwob/click.yaml, one seed after another, as `benchmarks/lookup_llm.py` does. Writes curve.png; the
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from rich.console import Console

from agentrl.types.paths import data_path
from benchmarks.lookup_llm import draw, table, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of the sampler and of the trainer")
    parser.add_argument("--out", type=Path, default=Path("runs/miniwob-click"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides the recipe")
    given = parser.parse_args()
    recipe = str(data_path("recipes", "miniwob", "click.yaml"))
    runs = [train(seed, given.out / f"seed-{seed}", given.threads, given.set, recipe) for seed in range(given.seeds)]
    Console(width=120).print(table(runs))
    draw([run["metrics"] for run in runs], given.out / "curve.png", "lines: training; dots: held-out seeds")
    results = [{name: value for name, value in run.items() if name != "metrics"} for run in runs]
    print(json.dumps({"cores": os.cpu_count(), "threads": given.threads, "seeds": results}))


if __name__ == "__main__":
    main()
