"""Stored episodes in the formats of other tools: `agentrl export RUN --to FORMAT`."""
