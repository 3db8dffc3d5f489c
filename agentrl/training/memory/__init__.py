"""Trainers that change a policy's text memory instead of its weights."""
