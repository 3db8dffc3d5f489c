"""The viewer: runs as JSON (`endpoints`), served to a browser (`server`) or put into one page (`export`).

`library` keeps the runs open, `text_index` holds what the index of a run lacks. Nothing here writes to a run, and
nothing imports the code that a run names.
"""
