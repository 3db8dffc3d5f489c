"""Auxiliary policies: speakers in an episode other than the main policy."""
