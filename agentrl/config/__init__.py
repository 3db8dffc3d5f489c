"""The recipe: its sections with their settings, and the loader of recipe files.

This package depends on pydantic only. A section names a plug-in; the package that implements the plug-in looks it up.
"""
