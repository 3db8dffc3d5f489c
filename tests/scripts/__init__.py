"""The programs of scripts/ and what the repository adds to pytest."""
