"""Scoring of whole groups, after their episodes have ended."""
