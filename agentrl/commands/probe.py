"""`agentrl probe`: a line per turn."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from agentrl.api.forks.probe import Probe
from agentrl.commands.output import write
from agentrl.view.show import signed_bar


def print_probe(result: Probe) -> None:
    """Prints the value before each turn, its change by the turn, and the turn's credit."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("turn", "value before", "± se", "worth", "± se", result.estimator or "(no credit)", "did"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "did" else "right")
    scale = max((abs(turn.worth) for turn in result.turns), default=0.0)
    most = max((abs(turn.credit or 0.0) for turn in result.turns), default=0.0)
    for turn in result.turns:
        credit = "-" if turn.credit is None else signed_bar(turn.credit, most)
        table.add_row(
            str(turn.turn),
            f"{turn.value:.3f}",
            f"{turn.value_error:.3f}",
            signed_bar(turn.worth, scale),
            f"{turn.worth_error:.3f}",
            credit,
            Text(turn.did[:48]),
        )
    write(table)
    print(f"reward of the episode: {result.reward:g}; {result.n} episodes resumed before each turn are in {result.run}")
    if result.no_credit:
        print(f"no credit: {result.no_credit}")
