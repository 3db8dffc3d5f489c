"""The contract of tools and environments: what a model may call, and how a call is run.

The tools that come with agentrl are in `builtin/`.
"""
