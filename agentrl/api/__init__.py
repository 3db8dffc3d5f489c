"""What can be done, as functions: the command line and Python call the same ones."""
