"""The `gui` tool: a screen, mouse and keyboard (docs/gui.md)."""
