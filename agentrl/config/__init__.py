"""The recipe: every section of it with its settings, and how recipe files are read.

pydantic only: what a section names is found by the room that implements it, from its settings.
"""
