"""`python -m scripts.room_coverage`: the lines of each room that the tests run."""
