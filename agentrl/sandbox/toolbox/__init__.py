"""The driver side of the toolbox, the program that runs inside every sandbox."""
