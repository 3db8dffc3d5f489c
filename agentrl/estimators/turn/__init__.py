"""Estimators that give the turns (or tokens) of a trajectory different credit."""
