"""Metrics of episodes, with their sums and comparisons."""
