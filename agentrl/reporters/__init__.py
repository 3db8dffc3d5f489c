"""Reporters: the terminal, and experiment trackers."""
