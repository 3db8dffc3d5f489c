"""Conversations of an episode: turns, tool calls, prompts, and what is recorded of them."""
