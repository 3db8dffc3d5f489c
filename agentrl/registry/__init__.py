"""Plug-ins: built-ins by name, and user code by reference."""
