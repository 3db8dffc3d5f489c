"""What is checked before training begins: errors, and settings that would waste a training."""
