"""Measurements of the tests: `python -m scripts.NAME`."""
