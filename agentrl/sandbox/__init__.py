"""Sandboxes: where the commands of an agent run, and cannot hurt anything."""
