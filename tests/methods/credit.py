"""Methods that give credit in another way."""

from __future__ import annotations

from tests.methods.proofs import Method, Run
from tests.methods.written import credited


def verdicts(run: Run) -> list[bool]:
    """By episode that failed or succeeded: True if every turn of it has the credit -1, as no other estimator gives."""
    credits = [run.reader.credit(episode.id) for episode in run.played]
    return [set(found.turn_advantages) == {-1.0} for found in credits if found is not None]


METHODS = [
    # The turn that both a-b episodes share has the mean of 2/3 and -1/3; c is of one episode.
    Method("salt", lambda run: run.metric("merged_edges"), credited, [0.167, 0.167, 0.167, 0.167, -0.333]),
    Method("negative-reinforcement", verdicts, credited, [0.0, 0.0, -1.0, -1.0, -1.0]),
]
