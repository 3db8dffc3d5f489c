"""Ranking of documents by meaning: sentence embeddings and their index (docs/search.md)."""
