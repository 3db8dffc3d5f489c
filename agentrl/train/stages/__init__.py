"""The stages of a run: what each trains on, and one after another."""
