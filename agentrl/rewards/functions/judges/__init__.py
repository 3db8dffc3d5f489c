"""Judges: a language model says how good an answer, a transcript or a turn is, or which turns are wrong."""
