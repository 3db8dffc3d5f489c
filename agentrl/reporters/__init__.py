"""Implementations of `types.reporter.Reporter`."""
