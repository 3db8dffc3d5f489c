"""Conversations of an episode: turns, tool calls, prompts, and their record."""
