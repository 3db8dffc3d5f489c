"""Rewards that compare the episodes of a group with each other. A group of one is not scored."""
