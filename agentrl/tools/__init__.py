"""Interfaces of tools and environments, and the execution of tool calls.

The built-in tools are in `builtin/`.
"""
