"""Checks before training begins: errors, and warnings about settings that would waste a training."""
