"""Sandboxes: where the commands of an agent run, and can hurt nothing.

The contract is in `types.sandbox`; backends make sandboxes; `toolbox` speaks to the program that runs inside each.
A backend is opened by name (`registry`).
"""
