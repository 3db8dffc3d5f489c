"""The arguments of a phase, and its report."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "figure "
"""Begins a line of a phase's output that is one figure: JSON with `name` and `value`."""


@dataclass
class Phase:
    """The arguments of a phase, and its problems so far.

    Attributes:
        device: "cuda" or "cpu".
        smoke: the smallest sizes.
        folder: for files; it is deleted afterwards.
    """

    device: str
    smoke: bool
    folder: Path
    problems: list[str] = field(default_factory=list)

    @classmethod
    def from_command_line(cls, about: str | None) -> Phase:
        """Reads `--device`, `--smoke` and `--folder`."""
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
        parser.add_argument("--smoke", action="store_true")
        parser.add_argument("--folder", type=Path, required=True)
        return cls(**vars(parser.parse_args()))

    def figure(self, name: str, value: Any) -> None:
        """Tells a figure. It is on disk when this returns, whatever happens to the process."""
        rounded = float(f"{value:.4g}") if isinstance(value, float) else value
        print(MARK + json.dumps({"name": name, "value": rounded}), flush=True)

    def check(self, holds: bool, otherwise: str) -> None:
        """Notes a problem unless something holds; the phase goes on."""
        if not holds:
            self.problems.append(otherwise)
            print(f"problem: {otherwise}", flush=True)

    def free_models(self) -> None:
        """Frees the GPU's memory that nothing refers to any more, but for circles."""
        gc.collect()
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()

    def end(self) -> None:
        """Ends the process: with 1 if there were problems."""
        sys.exit(int(bool(self.problems)))


def figures_in(text: str) -> dict[str, Any]:
    """The figures in a phase's output, by name. A line that a kill has cut short is none."""
    found = {}
    for line in text.splitlines():
        if line.startswith(MARK):
            try:
                told = json.loads(line.removeprefix(MARK))
                found[told["name"]] = told["value"]
            except (ValueError, KeyError):
                continue
    return found
