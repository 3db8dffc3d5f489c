"""Estimators that give every turn of a trajectory the credit of its outcome."""
