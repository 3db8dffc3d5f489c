"""Estimators that tell the turns (or tokens) of a trajectory apart."""
