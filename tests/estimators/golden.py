"""Reading golden files: inputs as a table, numbers as its columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.estimators.table import CreditTable


@dataclass(frozen=True)
class Golden:
    """One golden file of a set.

    Attributes:
        folder: the set.
        data: what the file holds.
    """

    folder: Path
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def tolerance(self) -> float:
        return float(self.data["tolerance"])

    @cached_property
    def trajectories(self) -> list[tuple[str, dict[str, Any]]]:
        """(group id, trajectory as the inputs file has it), in its order."""
        inputs = json.loads((self.folder / self.data["inputs_file"]).read_text())
        return [(group["group_id"], trajectory) for group in inputs["groups"] for trajectory in group["trajectories"]]

    @cached_property
    def turns(self) -> list[dict[str, Any]]:
        """All turns as the inputs file has them, trajectory by trajectory."""
        return [turn for _, trajectory in self.trajectories for turn in trajectory["turns"]]

    def table(self, *, score: Mapping[str, float] | None = None, state: Sequence[str] | None = None) -> CreditTable:
        """The inputs as a table.

        Args:
            score: other outcomes, by trajectory id.
            state: other state keys, one per turn.
        """
        turns = self.turns
        return CreditTable.from_columns(
            episode=[trajectory["traj_id"] for _, trajectory in self.trajectories],
            group=[group for group, _ in self.trajectories],
            score=[t["outcome"] if score is None else score[t["traj_id"]] for _, t in self.trajectories],
            length=[len(trajectory["turns"]) for _, trajectory in self.trajectories],
            reward=[sum(turn["rewards"].values()) for turn in turns],
            state=[turn["state"] for turn in turns] if state is None else state,
            tokens=[len(turn["action_token_ids"]) for turn in turns],
            valid=[turn["action_valid"] for turn in turns],
            action=[turn["action"] for turn in turns],
            observation_tokens=[turn["n_obs_tokens"] for turn in turns],
        )

    def close(self, found: np.ndarray, expected: Mapping[str, Any], table: CreditTable, what: str = "") -> None:
        """Compares a column with `traj_id -> number`, `-> [per turn]` or `-> [[per token] per turn]`.

        A number per trajectory is compared with a column of turns or of trajectories. No trajectory may be left out.
        """
        assert set(expected) == set(table.episode_ids)
        values = [expected[name] for name in table.episode_ids]
        if not isinstance(values[0], list) and len(found) == table.n_turns:
            values = [[value] * int(n) for value, n in zip(values, table.length, strict=True)]
        wanted = np.array(list(_leaves(values)), np.float64)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=self.tolerance, err_msg=f"{self.name} {what}")


Check = Callable[[Golden], None]


def _leaves(values: Any) -> Any:
    for value in values:
        if isinstance(value, list):
            yield from _leaves(value)
        else:
            yield value


def arguments(setting: str) -> dict[str, str]:
    """`gamma=0.9,mask=contiguous` as a dictionary."""
    return dict(part.split("=", 1) for part in setting.split(","))
