"""The stages of a run: their data, their order, and training without rollouts."""
