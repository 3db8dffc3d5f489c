"""The phases: each is a program that prints its figures, and exits with 1 if something is wrong."""
