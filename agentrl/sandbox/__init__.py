"""Sandboxes: isolated environments for the commands of an agent.

The contract is in `types.sandbox`; backends make sandboxes; `toolbox` talks to the program that runs inside each.
A backend is opened by name (`registry`).
"""
