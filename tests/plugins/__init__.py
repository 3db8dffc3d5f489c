"""Plug-ins of pytest for this repository; tests/conftest.py registers them."""
