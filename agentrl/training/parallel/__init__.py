"""Several trainer ranks: collectives and sharded parameters."""
