"""The public functions. The command line and Python code call the same ones."""
