"""Clocks that stop while the process is stopped."""
