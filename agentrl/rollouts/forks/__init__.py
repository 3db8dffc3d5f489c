"""Forks of an episode under way."""
