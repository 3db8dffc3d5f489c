"""Answers: which are the same, and which are right."""
