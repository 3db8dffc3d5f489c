"""Rollouts: the parts of a recipe, sessions and agents, attempts, runners, the scheduler, and failure handling.

Nothing here imports torch.
"""
