"""Training on given samples: demonstrations and preference pairs, one step at a time."""
