"""Existing agent programs: one is started for each episode, and calls the policy like an API."""
