"""Rows in the form of SWE-bench (docs/swe.md), on images that hold the repository."""
