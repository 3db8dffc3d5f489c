"""The policy as a model that trains: packing, attention over prefix trees, adapters."""
