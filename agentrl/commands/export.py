"""`agentrl export`: what was written, and what the format does not hold."""

from __future__ import annotations

from agentrl.api.export.checkpoint import ExportedCheckpoint
from agentrl.api.export.episodes import ExportedEpisodes
from agentrl.commands.output import write_line


def print_export(to: str, done: ExportedCheckpoint | ExportedEpisodes) -> None:
    """Prints the place, and of episodes what was lost."""
    if isinstance(done, ExportedCheckpoint):
        write_line(f"{done.checkpoint} in {done.place}" + (f", commit {done.commit}" if done.commit else ""))
        return
    write_line(f"{done.episodes} episodes in {done.place}")
    write_line(f"  {to} does not hold: {', '.join(done.lost)}")
    for what, count in done.changed.items():
        write_line(f"  lost: {count} {what}")
