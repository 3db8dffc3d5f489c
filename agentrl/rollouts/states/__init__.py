"""States of turns, for credit that compares turns at the same state: who names them, and the built-in signatures."""
