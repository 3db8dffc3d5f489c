"""`python -m scripts.mutants`: how many small faults the tests notice."""
