"""Aids of thought that touch nothing outside of the episode: a calculator and a memory."""
