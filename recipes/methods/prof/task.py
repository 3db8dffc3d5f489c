"""A process reward for the counting tasks of `staged`."""

from __future__ import annotations

from agentrl import Episode, Task


def sound(task: Task, episode: Episode) -> list[float]:
    """By turn: the share of the number that a step leaves or reaches; 0 for a step beyond it, and for no step."""
    to, scores = task.data["to"], []
    for turn in episode.turns:
        sums = [int(call.result) for call in turn.calls if call.outcome == "ok"]
        scores.append(min(1.0, sums[-1] / to) if sums and sums[-1] <= to else 0.0)
    return scores
