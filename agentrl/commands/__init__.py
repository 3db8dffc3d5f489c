"""The command line, a file a command family. `cli.py` puts them together."""
