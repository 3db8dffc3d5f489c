"""The scale simulator: what a cluster would do with a recipe, without one."""
