"""The embedded engine: continuous batching in this process, with exact log-probabilities."""
