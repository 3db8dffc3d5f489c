"""Programs in languages that are compiled."""
