"""Arms of benchmarks: one way each to do the same work. A peer's arm runs in a virtual environment of its own."""
