"""Measurements that print what they measured and how it compares: `python -m benchmarks.NAME`."""
