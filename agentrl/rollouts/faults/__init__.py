"""Failure handling: the status of an episode by kind of failure, retries, and budgets that end a run."""
