"""The `game` tool: environments with `reset()` and `step(action)`, played in text (docs/games.md)."""
