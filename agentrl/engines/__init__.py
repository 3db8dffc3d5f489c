"""Engines: token ids in, sampled token ids with log-probabilities out. The protocol is in `base`."""
