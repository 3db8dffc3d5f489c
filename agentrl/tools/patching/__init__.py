"""The tool `apply_patch`: V4A patches and unified diffs."""
