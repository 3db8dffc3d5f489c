"""Shared vocabulary: tasks, episodes, training samples, the engine protocol, the sandbox contract and errors.

Modules here import nothing above this room, and nothing heavier than msgspec, NumPy and pydantic.
"""
