"""Looking at a run: as text (`show`), as one static page (`html`), as a picture
(`curves`). `summary` holds the numbers that all of them show.
"""
