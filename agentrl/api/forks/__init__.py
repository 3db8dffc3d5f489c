"""Stored episodes, resumed from their turns."""
