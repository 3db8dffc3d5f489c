"""Looking at a run: as text (`show`), in a browser (`web`, `app`), as a picture (`curves`). `summary` holds the numbers
that all of them show.
"""
