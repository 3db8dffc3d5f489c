"""Figures of episodes, and the sums and comparisons that they are made with."""
