"""Judges: a language model grades an answer, a transcript or a turn, or marks the wrong turns."""
