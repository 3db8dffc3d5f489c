"""A reporter for tests of long work beside the phases of a run."""

from __future__ import annotations

from agentrl.types.reporter import Reporter


class Works(Reporter):
    """Keeps what it is told of work: name, steps done, all steps."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def work(self, name: str, done: int, total: int) -> None:
        self.told.append((name, done, total))

    def of(self, name: str) -> list[tuple[int, int]]:
        """What it was told of one work."""
        return [(done, total) for each, done, total in self.told if each == name]
