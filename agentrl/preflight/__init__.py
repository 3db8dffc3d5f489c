"""Checks of a recipe and the plan of its training, before the first episode (`plan.py`)."""
