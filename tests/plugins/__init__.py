"""What this repository adds to pytest; tests/conftest.py registers it."""
